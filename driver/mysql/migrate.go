package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/migrations"
)

// Migrate brings the database of the pool to the schema that this version of the driver needs. It
// does nothing if that is there already, whoever applied it. It goes on where an earlier one was
// interrupted, and refuses the schema of a newer version. Several at once wait for each other. The
// user needs CREATE, DROP, CREATE VIEW and CREATE ROUTINE; at run time it needs none of them.
func Migrate(ctx context.Context, db *sql.DB) error {
	if db == nil {
		return errNoPool
	}
	return (&pool{db: db}).migrate(ctx)
}

// migrationTime is for one statement of a migration. A table is made in a moment, unless another
// migration or a backup keeps it waiting.
const migrationTime = time.Minute

func (p *pool) migrate(ctx context.Context) error {
	switch err := p.checkSchema(ctx); {
	case lacksRight(err):
		return mayNotMigrate(err)
	case !errors.Is(err, errSchema):
		return explain(err)
	}
	return p.onOne(ctx, migrateOn)
}

// onOne runs f with one connection, whose statements do executes, and while which no other
// migration of the database goes on.
func (p *pool) onOne(ctx context.Context, f func(do func(stmt string) (results, error)) error) error {
	return p.session(ctx, func(do func(string) (results, error)) error {
		// The lock ends with the connection.
		sets, err := do("SELECT GET_LOCK(CONCAT('dlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)), 50)")
		if err != nil {
			return err
		}
		if row, err := sets.single(1); err != nil || row[0] != "1" {
			return errors.New("another migration of this database goes on for almost a minute")
		}
		return f(do)
	})
}

// session runs f with one connection, whose statements do executes: with settings that make them
// mean the same everywhere, such as that transactions may write, whatever the server's defaults
// are.
func (p *pool) session(ctx context.Context, f func(do func(stmt string) (results, error)) error) error {
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := p.db.Conn(within)
	if err != nil {
		return plain(ctx, err, callTimeout)
	}
	defer conn.Close()
	defer discard(conn) // its settings are not the user's any more
	do := func(stmt string) (results, error) {
		within, cancel := context.WithTimeout(ctx, migrationTime)
		defer cancel()
		sets, err := query(within, conn, stmt)
		return sets, plain(ctx, err, migrationTime)
	}
	for _, set := range []string{ // procedures keep the sql_mode of their creation
		"SET SESSION sql_mode = 'STRICT_ALL_TABLES', SESSION completion_type = 0, SESSION autocommit = 1, SESSION lock_wait_timeout = 50, " +
			"SESSION sql_select_limit = 18446744073709551615, SESSION sql_safe_updates = 0",
		"SET SESSION TRANSACTION READ WRITE",
	} {
		if _, err := do(set); err != nil {
			return err
		}
	}
	return f(do)
}

// migrateOn applies what is missing.
func migrateOn(do func(stmt string) (results, error)) error {
	sets, err := do(statement("version"))
	have, err := version(answer{sets: sets}, err)
	if err != nil {
		return err
	}
	if err := mismatch(have, oldest, schema); !errors.Is(err, errSchema) {
		return err // nil if another migration did it meanwhile
	}
	files, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
	if err != nil {
		return err
	}
	slices.Sort(files)
	for _, f := range files {
		number, _, _ := strings.Cut(path.Base(f), "_")
		if n, err := strconv.Atoi(number); err != nil || n <= have {
			continue
		}
		stmt, err := migrations.Files.ReadFile(f)
		if err != nil {
			return err
		}
		if _, err := do(string(stmt)); err != nil {
			return fmt.Errorf("migration %s: %w", path.Base(f), mayNotMigrate(err))
		}
	}
	return nil
}

// mayNotMigrate says which rights a migration needs, if that is why it failed.
func mayNotMigrate(err error) error {
	if !lacksRight(err) {
		return err
	}
	return fmt.Errorf("the server's user may not make the tables and procedures: give it CREATE, DROP, CREATE VIEW and CREATE ROUTINE on the database, "+
		"or let somebody who has them migrate once (?migrate=true, mysql.Migrate, or the files of package migrations) and open without migrate=true: %w", err)
}
