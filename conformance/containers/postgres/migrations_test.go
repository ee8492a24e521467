package postgres

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	migrate "github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	goose "github.com/pressly/goose/v3"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
	"github.com/dlock-go/dlock/migrations"
)

// in is a pool for another database of the server, which is made. Its name begins with that of this
// one, which no other test has.
func in(t testing.TB, s *service.Server, root *sql.DB, database string) *sql.DB {
	t.Helper()
	name := databaseOf(t, s.URL) + "_" + strings.ReplaceAll(database, "-", "_")
	execute(t, root, "CREATE DATABASE "+name)
	return poolOf(t, with(t, s.URL, toDatabase(name)))
}

// schemaOf is the schema of dlock in the database of a pool: columns, indexes, constraints,
// storage, and what must not exist: routines, views, sequences and triggers.
func schemaOf(t *testing.T, db *sql.DB) string {
	t.Helper()
	var lines []string
	for _, query := range []string{
		"SELECT concat_ws('|', table_schema, table_name, ordinal_position, column_name, data_type, is_nullable, column_default, collation_name) " +
			"FROM information_schema.columns WHERE table_name LIKE 'dlock%' ORDER BY table_schema, table_name, ordinal_position",
		"SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'dlock%' ORDER BY indexdef",
		"SELECT concat_ws('|', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint " +
			"WHERE conrelid IN (SELECT oid FROM pg_class WHERE relname LIKE 'dlock%') ORDER BY 1",
		"SELECT concat_ws('|', relname, relkind, relpersistence, reloptions) FROM pg_class WHERE relname LIKE 'dlock%' AND relkind <> 'i' ORDER BY relname",
		"SELECT 'routine ' || routine_name FROM information_schema.routines WHERE routine_schema = 'public'",
		"SELECT 'view ' || table_name FROM information_schema.views WHERE table_schema = 'public'",
		"SELECT 'trigger ' || tgname FROM pg_trigger WHERE NOT tgisinternal",
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

// locksIn locks and unlocks by the tables in the database of a pool.
func locksIn(t *testing.T, db *sql.DB) {
	t.Helper()
	b, err := postgres.NewDB(db, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r := steps.Asked(b, "a", time.Minute)
	steps.Acquired(t, b, r)
	steps.Released(t, b, r)
}

// tool is one of the tools that the trees of package migrations are for, with the table in which it
// keeps what it has applied ("": its default).
type tool struct {
	name string
	own  string // the folder of dlock's files
	// up applies everything that is missing, and down removes everything.
	up, down func(t *testing.T, db *sql.DB, files fs.FS, table string) error
	// file adds a migration to an application's files.
	file func(to fstest.MapFS, number int, name, up, down string)
}

// mustSub is a folder.
func mustSub(t *testing.T, files fs.FS, folder string) fs.FS {
	t.Helper()
	sub, err := fs.Sub(files, folder)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

var tools = []tool{golangMigrate, gooseTool}

// byMigrate is an instance of golang-migrate.
func byMigrate(t *testing.T, db *sql.DB, files fs.FS, table string) *migrate.Migrate {
	t.Helper()
	source, err := iofs.New(files, ".")
	if err != nil {
		t.Fatal(err)
	}
	target, err := migratepgx.WithInstance(db, &migratepgx.Config{MigrationsTable: table})
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("iofs", source, "pgx5", target)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var golangMigrate = tool{
	name: "golang-migrate",
	own:  "postgres",
	up: func(t *testing.T, db *sql.DB, files fs.FS, table string) error {
		if err := byMigrate(t, db, files, table).Up(); !errors.Is(err, migrate.ErrNoChange) {
			return err
		}
		return nil
	},
	down: func(t *testing.T, db *sql.DB, files fs.FS, table string) error {
		return byMigrate(t, db, files, table).Down()
	},
	file: func(to fstest.MapFS, number int, name, up, down string) {
		base := fmt.Sprintf("%06d_%s", number, name)
		to[base+".up.sql"] = &fstest.MapFile{Data: []byte(up)}
		to[base+".down.sql"] = &fstest.MapFile{Data: []byte(down)}
	},
}

// byGoose is an instance of goose.
func byGoose(t *testing.T, db *sql.DB, files fs.FS, table string) *goose.Provider {
	t.Helper()
	var options []goose.ProviderOption
	if table != "" {
		options = append(options, goose.WithTableName(table))
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, options...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var gooseTool = tool{
	name: "goose",
	own:  "goose-postgres",
	up: func(t *testing.T, db *sql.DB, files fs.FS, table string) error {
		_, err := byGoose(t, db, files, table).Up(t.Context())
		return err
	},
	down: func(t *testing.T, db *sql.DB, files fs.FS, table string) error {
		_, err := byGoose(t, db, files, table).DownTo(t.Context(), 0)
		return err
	},
	file: func(to fstest.MapFS, number int, name, up, down string) {
		to[fmt.Sprintf("%05d_%s.sql", number, name)] = &fstest.MapFile{Data: fmt.Appendf(nil, "-- +goose Up\n%s;\n-- +goose Down\n%s;\n", up, down)}
	},
}

// TestPostgresMigrationTools applies both trees with the tools that they are for, and wants the
// schema that postgres.Migrate makes, without any routine; then removes it, and wants nothing left.
func TestPostgresMigrationTools(t *testing.T) {
	t.Parallel()
	s := shared(t)
	root := poolOf(t, s.URL)
	ours := in(t, s, root, "ours")
	if err := postgres.Migrate(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	want := schemaOf(t, ours)
	if n := strings.Count(want, "dlock_"); n < 30 || strings.Contains(want, "routine ") || strings.Contains(want, "view ") {
		t.Fatalf("the schema is\n%s", want)
	}
	for _, tool := range tools {
		db := in(t, s, root, tool.own)
		files := mustSub(t, migrations.Files, tool.own)
		for range 2 {
			if err := tool.up(t, db, files, ""); err != nil {
				t.Fatalf("%s up: %v", tool.name, err)
			}
		}
		if got := schemaOf(t, db); got != want {
			t.Errorf("%s makes\n%s\nand postgres.Migrate makes\n%s", tool.name, got, want)
		}
		if err := postgres.Migrate(t.Context(), db); err != nil {
			t.Errorf("postgres.Migrate after %s: %v", tool.name, err)
		}
		locksIn(t, db)
		if err := tool.down(t, db, files, ""); err != nil {
			t.Fatalf("%s down: %v", tool.name, err)
		}
		if left := schemaOf(t, db); left != "" {
			t.Errorf("%s down leaves\n%s", tool.name, left)
		}
		db = in(t, s, root, tool.own+"_after") // which finds that the tables are there
		if err := postgres.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		if err := tool.up(t, db, mustSub(t, migrations.Files, tool.own), ""); err != nil {
			t.Errorf("%s after postgres.Migrate: %v", tool.name, err)
		}
		locksIn(t, db)
	}
}

// application is one with migrations of its own, numbered from 1. Each makes a table.
type application struct {
	tool tool
	db   *sql.DB
	all  fstest.MapFS
	last int // how many tables it has
	// copies of dlock's files stand in its folder, before what it adds.
	copies int
}

// grow adds a migration, and returns all.
func (a *application) grow() fs.FS {
	a.last++
	table := fmt.Sprint("app_", a.last)
	a.tool.file(a.all, a.last+a.copies, table, "CREATE TABLE "+table+" (k int PRIMARY KEY)", "DROP TABLE "+table)
	return a.all
}

// has fails the test unless all tables of the application are there, and so many of dlock's.
func (a *application) has(t *testing.T, when string, dlocks int) {
	t.Helper()
	const count = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'public' AND table_name "
	if n := one[int](t, a.db, count+`LIKE 'app\_%'`); n != a.last {
		t.Errorf("%s: %d tables of the application, want %d", when, n, a.last)
	}
	if n := one[int](t, a.db, count+`IN ('dlock_locks', 'dlock_requests')`); n != dlocks {
		t.Errorf("%s: %d tables of dlock, want %d", when, n, dlocks)
	}
}

// TestPostgresMigrationsBesideAnApplication: both trees run beside migrations of an application in
// the same database in the ways that docs/postgres.md lists.
func TestPostgresMigrationsBesideAnApplication(t *testing.T) {
	t.Parallel()
	s := shared(t)
	root := poolOf(t, s.URL)
	for _, tool := range tools {
		for _, at := range []int{5, 25} {
			begin := func(t *testing.T, kind string) *application {
				a := &application{tool: tool, all: fstest.MapFS{}}
				a.db = in(t, s, root, fmt.Sprintf("%s_%s_%d", tool.own, kind, at))
				for range at {
					a.grow()
				}
				return a
			}
			own := mustSub(t, migrations.Files, tool.own)
			up := func(t *testing.T, a *application, files fs.FS, table string) {
				t.Helper()
				if err := tool.up(t, a.db, files, table); err != nil {
					t.Errorf("up: %v", err)
				}
			}
			name := fmt.Sprintf("%s at %d, ", tool.name, at)

			// dlock's have a table of the tool of their own, and the application's the default
			t.Run(name+"a table of its own, dlock last", func(t *testing.T) {
				a := begin(t, "last")
				up(t, a, a.all, "")
				up(t, a, own, "dlock_migrations")
				a.has(t, "both", 2)
				up(t, a, a.grow(), "")
				up(t, a, own, "dlock_migrations")
				a.has(t, "one more", 2)
				locksIn(t, a.db)
				if err := tool.down(t, a.db, own, "dlock_migrations"); err != nil {
					t.Errorf("down: %v", err)
				}
				a.has(t, "without dlock", 0)
				up(t, a, a.grow(), "")
				up(t, a, own, "dlock_migrations")
				a.has(t, "with it again", 2)
				locksIn(t, a.db)
			})
			t.Run(name+"a table of its own, dlock first", func(t *testing.T) {
				a := begin(t, "first")
				up(t, a, own, "dlock_migrations")
				up(t, a, a.all, "")
				a.has(t, "both", 2)
				up(t, a, a.grow(), "")
				a.has(t, "one more", 2)
				locksIn(t, a.db)
				if err := tool.down(t, a.db, a.all, ""); err != nil {
					t.Errorf("down: %v", err)
				}
				a.last = 0
				a.has(t, "without the application", 2)
				locksIn(t, a.db)
			})

			// dlock's files are copies among the application's, under its next numbers
			t.Run(name+"copies in its folder", func(t *testing.T) {
				a := begin(t, "copies")
				up(t, a, a.all, "")
				for name, file := range filesOf(t, own) {
					var i int
					if _, err := fmt.Sscanf(name, "%d_", &i); err != nil {
						t.Fatal(err)
					}
					_, rest, _ := strings.Cut(name, "_")
					a.all[fmt.Sprintf("%06d_%s", a.last+i%1000, rest)] = file // without the date
				}
				up(t, a, a.all, "")
				a.has(t, "both", 2)
				a.copies = 3
				up(t, a, a.grow(), "")
				a.has(t, "one more", 2)
				locksIn(t, a.db)
			})
		}
	}

	// golang-migrate keeps one number: two folders cannot share its table, which it reports
	for _, at := range []int{5, 25} {
		t.Run(fmt.Sprintf("golang-migrate at %d, its default table for both", at), func(t *testing.T) {
			a := &application{tool: golangMigrate, all: fstest.MapFS{}}
			a.db = in(t, s, root, fmt.Sprintf("default_%d", at))
			for range at {
				a.grow()
			}
			if err := golangMigrate.up(t, a.db, a.all, ""); err != nil {
				t.Fatal(err)
			}
			if err := golangMigrate.up(t, a.db, mustSub(t, migrations.Files, "postgres"), ""); err == nil || !strings.Contains(err.Error(), fmt.Sprint("version ", at)) {
				t.Errorf("up of dlock's: %v", err)
			}
			a.has(t, "refused", 0)
			if err := golangMigrate.up(t, a.db, a.grow(), ""); err != nil {
				t.Errorf("up: %v", err)
			}
			a.has(t, "one more", 0)
		})
	}
}

// filesOf are the files of a folder.
func filesOf(t *testing.T, folder fs.FS) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	names, err := fs.Glob(folder, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	return files
}

// TestPostgresMigrateGoesOn interrupts Migrate after each of its statements, and drops each of the
// tables, and wants the next Migrate to end with the same schema. The rows of the other table are
// kept.
func TestPostgresMigrateGoesOn(t *testing.T) {
	t.Parallel()
	s := shared(t)
	root := poolOf(t, s.URL)
	part := in(t, s, root, "part")
	goesOn := func(when, want string) string {
		t.Helper()
		if err := postgres.Migrate(t.Context(), part); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		got := schemaOf(t, part)
		if want != "" && got != want {
			t.Fatalf("%s Migrate makes\n%s\nwant\n%s", when, got, want)
		}
		return got
	}
	want := goesOn("from nothing", "")
	ups, err := fs.Glob(migrations.Files, "postgres/*.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(ups) + 1 {
		if n == 2 { // both tables are there, so Migrate leaves them; dlock check misses the index
			continue
		}
		execute(t, part, "DROP TABLE dlock_locks", "DROP TABLE dlock_requests")
		for _, up := range ups[:n] {
			text, err := migrations.Files.ReadFile(up)
			if err != nil {
				t.Fatal(err)
			}
			execute(t, part, string(text))
		}
		goesOn(fmt.Sprintf("after %d statements", n), want)
	}
	locksIn(t, part)
	tokens := one[int](t, part, "SELECT COUNT(*) FROM dlock_locks")
	execute(t, part, "DROP TABLE dlock_requests")
	goesOn("without dlock_requests", want)
	if n := one[int](t, part, "SELECT COUNT(*) FROM dlock_locks"); n != tokens {
		t.Errorf("%d rows of dlock_locks are left of %d", n, tokens)
	}
	execute(t, part, "DROP TABLE dlock_locks")
	goesOn("without dlock_locks", want)
	locksIn(t, part)
}

// TestPostgresRevertBesideOthers: while clients lock and unlock, Revert refuses as long as anything
// is held, and ends no hold.
func TestPostgresRevertBesideOthers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	migrated(t, s)
	root := poolOf(t, s.URL)
	var wg sync.WaitGroup
	var pairs atomic.Int64
	for range 4 {
		b := byURL(t, s.URL)
		wg.Go(func() {
			for {
				r := steps.Asked(b, "beside", time.Minute)
				_, err := steps.Acquire(t.Context(), b, r)
				if errors.Is(err, driver.ErrHeld) {
					continue
				}
				if err != nil { // the tables are gone
					says(t, "after Revert", map[string]error{"Acquire": err}, "missing")
					return
				}
				if err := steps.Renewed(b, r); err != nil {
					t.Errorf("a hold was lost: %v", err)
					return
				}
				if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("a hold was lost: %v", err)
					return
				}
				pairs.Add(1)
			}
		})
	}
	defer wg.Wait()
	await.That(t, "clients lock", func() bool { return pairs.Load() > 20 })
	refused := 0
	await.That(t, "nothing is held for a moment", func() bool {
		err := postgres.Revert(t.Context(), root, false)
		if errors.Is(err, driver.ErrHeld) {
			refused++
			return false
		}
		if err != nil {
			t.Errorf("Revert: %v", err)
		}
		return true
	})
	t.Logf("Revert refused %d times", refused)
	if left := schemaOf(t, root); left != "" {
		t.Errorf("Revert leaves\n%s", left)
	}
}

// otherTables are tables of the driver's names that it must not use: those of another version of
// dlock.
var otherTables = map[string]struct{ make, undo, words []string }{
	"both tables": {
		[]string{
			"CREATE TABLE dlock_locks (prefix bytea NOT NULL, name bytea NOT NULL, last_token bigint NOT NULL, PRIMARY KEY (prefix, name))",
			"CREATE TABLE dlock_requests (prefix bytea NOT NULL, name bytea NOT NULL, place bigint NOT NULL, id bytea UNIQUE, PRIMARY KEY (prefix, name, place))",
		},
		[]string{"DROP TABLE dlock_requests", "DROP TABLE dlock_locks"},
		[]string{"another version", "dlock_locks", "last_token", "drop the tables", "migrate"},
	},
	"one table only": {
		[]string{"CREATE TABLE dlock_requests (place bigint NOT NULL PRIMARY KEY)"},
		[]string{"DROP TABLE dlock_requests"},
		[]string{"another version", "dlock_requests", "drop the tables", "migrate"},
	},
	"a view": {
		[]string{"CREATE VIEW dlock_locks AS SELECT 1 AS k"},
		[]string{"DROP VIEW dlock_locks"},
		[]string{"dlock_locks", "not an ordinary table"},
	},
}

// TestPostgresOtherTables: everything that opens, migrates and cleans up refuses tables of another
// version with an error that says what to do, and leaves them as they are.
func TestPostgresOtherTables(t *testing.T) {
	t.Parallel()
	s := shared(t)
	root := poolOf(t, s.URL)
	for what, other := range otherTables {
		execute(t, root, other.make...)
		before := schemaOf(t, root)
		errs := refusals(t, s, root)
		errs["Revert"] = postgres.Revert(t.Context(), root, true)
		says(t, what, errs, other.words...)
		for way, err := range errs {
			if !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("%s, by %s: %v does not match ErrUnsupported", what, way, err)
			}
		}
		if after := schemaOf(t, root); after != before {
			t.Errorf("%s: left\n%s\nof\n%s", what, after, before)
		}
		// the advice of the message
		execute(t, root, other.undo...)
		if err := postgres.Migrate(t.Context(), root); err != nil {
			t.Errorf("%s: Migrate, when they are gone: %v", what, err)
		}
		locksIn(t, root)
		execute(t, root, "DROP TABLE dlock_locks", "DROP TABLE dlock_requests")
	}
	for what, c := range map[string]struct {
		change string
		words  []string
	}{
		"without a key":        {"ALTER TABLE dlock_locks DROP CONSTRAINT dlock_locks_pkey", []string{"dlock_locks", "primary and unique keys", "migrate"}},
		"without a unique key": {"ALTER TABLE dlock_requests DROP CONSTRAINT dlock_requests_place", []string{"dlock_requests", "primary and unique keys", "migrate"}},
		"an unlogged table":    {"ALTER TABLE dlock_requests SET UNLOGGED", []string{"dlock_requests", "UNLOGGED", "SET LOGGED"}},
	} {
		if err := postgres.Migrate(t.Context(), root); err != nil {
			t.Fatal(err)
		}
		execute(t, root, c.change)
		says(t, what, refusals(t, s, root), c.words...)
		execute(t, root, "DROP TABLE dlock_locks", "DROP TABLE dlock_requests")
	}
}
