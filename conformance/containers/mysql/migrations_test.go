package mysql

import (
	"database/sql"
	"io/fs"
	"strings"
	"testing"
	"time"

	migrate "github.com/golang-migrate/migrate/v4"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	goose "github.com/pressly/goose/v3"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/migrations"
)

// in is the connection to another database of the server, which is made.
func (d dsn) in(t testing.TB, root *sql.DB, database string) *sql.DB {
	t.Helper()
	execute(t, root, "CREATE DATABASE "+database)
	c := dsn{d.Clone()}
	c.DBName = database
	return c.pool(t)
}

// schemaOf is all that dlock has in the database of a pool: columns, indexes, the bodies of
// procedures, views.
func schemaOf(t *testing.T, db *sql.DB) string {
	t.Helper()
	var lines []string
	for _, query := range []string{
		"SELECT CONCAT_WS('|', table_name, ordinal_position, column_name, column_type, is_nullable, character_set_name, collation_name, column_comment) " +
			"FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name LIKE 'dlock%' ORDER BY table_name, ordinal_position",
		"SELECT CONCAT_WS('|', table_name, index_name, non_unique, seq_in_index, column_name) " +
			"FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name LIKE 'dlock%' ORDER BY table_name, index_name, seq_in_index",
		"SELECT CONCAT_WS('|', table_name, engine, table_type, table_comment) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'dlock%' ORDER BY table_name",
		"SELECT CONCAT_WS('|', routine_name, security_type, routine_definition, routine_comment) FROM information_schema.routines WHERE routine_schema = DATABASE() ORDER BY routine_name",
		"SELECT CONCAT_WS('|', specific_name, ordinal_position, parameter_mode, parameter_name, dtd_identifier) " +
			"FROM information_schema.parameters WHERE specific_schema = DATABASE() ORDER BY specific_name, ordinal_position",
		"SELECT CONCAT_WS('|', table_name, REPLACE(view_definition, CONCAT('`', DATABASE(), '`.'), ''), security_type) FROM information_schema.views WHERE table_schema = DATABASE()",
	} {
		rows, err := db.Query(query)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, line)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
	return strings.Join(lines, "\n")
}

// TestMySQLMigrationTools applies both trees with the tools that they are for, on pools without
// multi-statements, and wants the schema that mysql.Migrate makes; then takes them back, and wants
// nothing left.
func TestMySQLMigrationTools(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		d := mysqlOf(t, s)
		root := d.pool(t)
		ours := d.in(t, root, "ours")
		if err := mysql.Migrate(t.Context(), ours); err != nil {
			t.Fatal(err)
		}
		want := schemaOf(t, ours)
		if n := strings.Count(want, "dlock_"); n < 100 {
			t.Fatalf("the schema is only\n%s", want)
		}

		byMigrate := d.in(t, root, "golang_migrate")
		source, err := iofs.New(migrations.Files, "mysql")
		if err != nil {
			t.Fatal(err)
		}
		target, err := migratemysql.WithInstance(byMigrate, &migratemysql.Config{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := migrate.NewWithInstance("iofs", source, "mysql", target)
		if err != nil {
			t.Fatal(err)
		}
		byGoose := d.in(t, root, "goose")
		tree, err := fs.Sub(migrations.Files, "goose")
		if err != nil {
			t.Fatal(err)
		}
		g, err := goose.NewProvider(goose.DialectMySQL, byGoose, tree)
		if err != nil {
			t.Fatal(err)
		}
		tools := map[string]struct {
			db       *sql.DB
			up, down func() error
		}{
			"golang-migrate": {byMigrate, m.Up, m.Down},
			"goose": {byGoose,
				func() error { _, err := g.Up(t.Context()); return err },
				func() error { _, err := g.DownTo(t.Context(), 0); return err }},
		}
		for name, tool := range tools {
			if err := tool.up(); err != nil {
				t.Fatalf("%s up: %v", name, err)
			}
			if got := schemaOf(t, tool.db); got != want {
				t.Errorf("%s makes\n%s\nand mysql.Migrate makes\n%s", name, got, want)
			}
			if err := mysql.Migrate(t.Context(), tool.db); err != nil {
				t.Errorf("mysql.Migrate after %s: %v", name, err)
			}
			b, err := mysql.New(tool.db, mysql.Options{})
			if err != nil {
				t.Fatal(err)
			}
			r := steps.Asked(b, "a", time.Minute)
			steps.Acquired(t, b, r)
			steps.Released(t, b, r)
			b.Close()
			if err := tool.down(); err != nil {
				t.Fatalf("%s down: %v", name, err)
			}
			if left := schemaOf(t, tool.db); left != "" {
				t.Errorf("%s down leaves\n%s", name, left)
			}
		}
	})
}

// TestMySQLMigrateGoesOn interrupts Migrate after each of its statements, and wants the next one to
// end with the same schema.
func TestMySQLMigrateGoesOn(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		d := mysqlOf(t, s)
		root := d.pool(t)
		whole := d.in(t, root, "whole")
		if err := mysql.Migrate(t.Context(), whole); err != nil {
			t.Fatal(err)
		}
		want := schemaOf(t, whole)
		ups, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
		if err != nil {
			t.Fatal(err)
		}
		part := d.in(t, root, "part")
		for n := range ups {
			for _, up := range ups[:n] {
				text, err := migrations.Files.ReadFile(up)
				if err != nil {
					t.Fatal(err)
				}
				execute(t, part, string(text))
			}
			if err := mysql.Migrate(t.Context(), part); err != nil {
				t.Fatalf("after %d statements: %v", n, err)
			}
			if got := schemaOf(t, part); got != want {
				t.Fatalf("after %d statements Migrate makes\n%s\nwant\n%s", n, got, want)
			}
			execute(t, root, "DROP DATABASE part", "CREATE DATABASE part")
		}
	})
}
