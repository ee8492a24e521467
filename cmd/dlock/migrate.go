package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/driver/postgres"
	"github.com/dlock-go/dlock/migrations"
)

func newMigrate() *cobra.Command {
	b, m := backend{}, migration{}
	cmd := &cobra.Command{
		Use:   "migrate [flags] [URL]",
		Short: "Create, remove or print the tables that MySQL and PostgreSQL need",
		Long: `Create the two tables that dlock needs in a database of MySQL, MariaDB or PostgreSQL, if they are
missing. Other backends need no tables. The command fails if there are tables of another version.
Several migrations may run at once. On MySQL and MariaDB the user needs CREATE and SELECT, and for
--down SELECT, DROP and LOCK TABLES. On PostgreSQL it needs USAGE and CREATE on the schema, and for
--down it has to own the tables. Programs that lock need SELECT, INSERT, UPDATE and DELETE.

--down removes the tables. It asks for confirmation; without a terminal it needs --yes. It refuses
while a lock is held or waited for, unless --force is given: then those locks are lost. The last
fencing tokens are removed too; later ones are greater unless the server's clock is set back.

--print writes the statements for another tool, and contacts no server. They are those for the
database of the URL, and for MySQL and MariaDB without a URL.

Exit status: 0; 1 if something failed, if the answer was no, or if --down refused; 2 for wrong
flags or a wrong URL, or if --yes is needed and missing.`,
		Example: `  DLOCK_URL=mysql://admin:secret@db/app dlock migrate
  dlock migrate --print | mysql app
  dlock migrate --print postgres://db/app | psql app
  dlock migrate --down mysql://admin@db/app`,
		Args: maybeArg("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rawURL, err := b.given(args)
			if m.print && (err == nil || len(args) == 0) {
				return m.write(rawURL, cmd.OutOrStdout())
			}
			if err != nil {
				return err
			}
			return untilSignal(func(ctx context.Context) error { return m.run(ctx, rawURL, cmd.InOrStdin(), cmd.OutOrStdout()) })
		},
	}
	f := cmd.Flags()
	b.urlFlag(f, "the backend (default: $DLOCK_URL)")
	f.BoolVar(&m.down, "down", false, "remove the tables")
	f.BoolVar(&m.print, "print", false, "write the statements, and change nothing")
	f.BoolVar(&m.force, "force", false, "with --down: even while locks are held, which are then lost")
	f.BoolVar(&m.yes, "yes", false, "with --down: do not ask for confirmation")
	return cmd
}

// schema is a driver that needs tables.
type schema struct {
	folder  string // of package migrations
	open    func(rawURL string) (*sql.DB, error)
	migrate func(context.Context, *sql.DB) error
	revert  func(ctx context.Context, db *sql.DB, force bool) error
}

// schemaOf returns the driver of the scheme; nil: it needs no tables.
func schemaOf(scheme string) *schema {
	switch scheme {
	case "mysql", "mysqls", "mariadb", "mariadbs":
		return &schema{"mysql", mysql.OpenDB, mysql.Migrate, mysql.Revert}
	case "postgres", "postgresql":
		return &schema{"postgres", postgres.OpenDB, postgres.Migrate, postgres.Revert}
	}
	return nil
}

// migration has the flags.
type migration struct{ down, print, force, yes bool }

func (m migration) run(ctx context.Context, rawURL string, in io.Reader, out io.Writer) error {
	if (m.force || m.yes) && !m.down {
		return usage("--force and --yes are allowed with --down only")
	}
	scheme, _, _ := strings.Cut(rawURL, ":")
	of := schemaOf(scheme)
	if of == nil {
		if driver.Lookup(scheme) == nil {
			return usage("unknown scheme %q; known here: %s", printable(scheme), strings.Join(driver.Schemes(), ", "))
		}
		fmt.Fprintf(out, "%s needs no tables: there is nothing to migrate\n", scheme)
		return nil
	}
	db, err := of.open(rawURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if m.down {
		return m.remove(ctx, of, db, in, out)
	}
	if err := of.migrate(ctx, db); err != nil {
		return err
	}
	fmt.Fprintln(out, "the tables exist")
	return nil
}

func (m migration) remove(ctx context.Context, of *schema, db *sql.DB, in io.Reader, out io.Writer) error {
	if !m.yes {
		if !askable(in) {
			return usage("no terminal to ask for confirmation; --yes removes the tables without asking")
		}
		if err := ask(ctx, in, out, "Remove the tables of dlock, and all their content?"); err != nil {
			return err
		}
	}
	if err := of.revert(ctx, db, m.force); err != nil {
		return err
	}
	fmt.Fprintln(out, "the tables are removed")
	return nil
}

// write writes the statements in the order in which they have to be run. An empty URL means MySQL.
func (m migration) write(rawURL string, out io.Writer) error {
	scheme, _, _ := strings.Cut(rawURL, ":")
	of := schemaOf(scheme)
	if of == nil {
		of = schemaOf("mysql")
	}
	pattern := of.folder + "/*.up.sql"
	if m.down {
		pattern = of.folder + "/*.down.sql"
	}
	files, err := fs.Glob(migrations.Files, pattern)
	if err != nil {
		return err
	}
	slices.Sort(files)
	if m.down {
		slices.Reverse(files)
	}
	var all strings.Builder
	for i, f := range files {
		stmt, err := migrations.Files.ReadFile(f)
		if err != nil {
			return err
		}
		if i > 0 {
			all.WriteString("\n")
		}
		fmt.Fprintf(&all, "-- %s\n%s;\n", path.Base(f), strings.TrimSpace(string(stmt)))
	}
	_, err = io.WriteString(out, all.String())
	return err
}
