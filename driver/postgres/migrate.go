package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/migrations"
)

// Migrate creates the tables that this version of the driver needs, dlock_locks and dlock_requests,
// in the first schema of the search_path. It inspects the database itself: it does nothing if the
// search_path finds both tables, however they were made, creates the ones that are missing, and
// refuses tables of another version with an error that matches [driver.ErrUnsupported]. It does all
// or nothing, and may run several times at once. The user needs USAGE and CREATE on the schema.
//
// db is a pool of github.com/jackc/pgx/v5/stdlib, such as [OpenDB] returns. For a pgxpool.Pool pass
// stdlib.OpenDBFromPool of it.
func Migrate(ctx context.Context, db *sql.DB) error {
	if db == nil {
		return errNoPool
	}
	return (&pool{source: sqlSource{db}}).migrate(ctx)
}

const (
	// migrationTime is the time that a transaction of a migration has, with its repetitions. A
	// table is made in a moment, unless another migration or a backup keeps it waiting.
	migrationTime = time.Minute
	// migrationLock is the advisory lock of migrations: CREATE TABLE IF NOT EXISTS fails if it runs
	// twice at once. The number is "dlock" in ASCII.
	migrationLock = "SELECT pg_advisory_xact_lock(431315968875)"
)

func (p *pool) migrate(ctx context.Context) error {
	s, err := p.lookToMigrate(ctx)
	if err != nil {
		return err
	}
	if err := s.mismatch(); !errors.Is(err, errSchema) {
		return err
	}
	var files []string
	ups, err := fs.Glob(migrations.Files, "postgres/*.up.sql")
	if err != nil {
		return err
	}
	for _, f := range slices.Sorted(slices.Values(ups)) {
		// a table that another schema of the search_path has is not made again in the first
		there := false
		for table, found := range s.found {
			there = there || strings.HasSuffix(f, "_"+table+".up.sql") && len(found.columns) > 0
		}
		if !there {
			files = append(files, f)
		}
	}
	err = p.transaction(ctx, func(do doer) error {
		if err := do(migrationLock, nil); err != nil {
			return err
		}
		return apply(do, files)
	})
	if err != nil {
		return mayNotMigrate(err)
	}
	if s, err = p.lookToMigrate(ctx); err != nil {
		return err
	}
	return s.mismatch() // tables of another version may have come meanwhile
}

// lookToMigrate is look for a migration, which needs a server that takes writes.
func (p *pool) lookToMigrate(ctx context.Context) (*site, error) {
	s, err := p.look(ctx, patience)
	switch {
	case err != nil:
		return nil, explain(err)
	case s.number < leastVersion:
		return nil, s.unfit()
	case s.standby:
		return nil, errStandby
	}
	return s, nil
}

// doer executes a statement in a transaction, and calls each for the rows of its answer. Without
// arguments it takes any statement.
type doer func(stmt string, each func(pgx.Rows) error, args ...any) error

// named is do with the schemas in which the tables were found.
func (s *site) named(do doer) doer {
	names := s.names()
	return func(stmt string, each func(pgx.Rows) error, args ...any) error {
		return do(names.in(stmt), each, args...)
	}
}

// transaction calls f in a transaction, which it rolls back if f fails. It repeats that for a
// while if another transaction is in the way. No lock is waited for longer than a second: what
// waits for a table keeps all clients behind it.
func (p *pool) transaction(ctx context.Context, f func(doer) error) error {
	within, cancel := context.WithTimeout(ctx, migrationTime)
	defer cancel()
	var why error // the last error but that of a deadline
	begun := time.Now()
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		_, err := p.with(within, func(conn *pgx.Conn) error {
			do := func(stmt string, each func(pgx.Rows) error, args ...any) error {
				if each == nil && len(args) == 0 {
					_, err := conn.Exec(within, stmt)
					return err
				}
				rows, err := conn.Query(within, stmt, append([]any{pgx.QueryExecModeExec}, args...)...)
				return (&op{each: each}).read(rows, err)
			}
			if err := do("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", nil); err != nil {
				return err
			}
			err := do("SET LOCAL lock_timeout = '1s'", nil)
			if err == nil {
				err = f(do)
			}
			if err != nil {
				do("ROLLBACK", nil) // if it fails the connection does not return to the pool
				return err
			}
			return do("COMMIT", nil)
		})
		if err == nil {
			return nil
		}
		if why != nil && within.Err() != nil {
			err = why
		}
		if why = err; !inTheWay(err) || kit.Pause(within, nil, kit.Jitter(wait, wait/2)) != nil {
			if inTheWay(err) {
				err = fmt.Errorf("another transaction has kept this one from its tables for %s: %w", time.Since(begun).Round(time.Second), err)
			}
			return plain(ctx, err, migrationTime)
		}
	}
}

// inTheWay reports whether a transaction failed since another one was in the way, or made the same
// table at the same time.
func inTheWay(err error) bool {
	e := serverError(err)
	return e != nil && (kindOf(err, true) == collided || slices.Contains([]string{"23505", "42P07", "42710", "42P06"}, e.Code))
}

// apply executes files of package migrations.
func apply(do doer, files []string) error {
	for _, f := range files {
		stmt, err := migrations.Files.ReadFile(f)
		if err != nil {
			return err
		}
		if err := do(string(stmt), nil); err != nil {
			return fmt.Errorf("migration %s: %w", path.Base(f), err)
		}
	}
	return nil
}

// mayNotMigrate adds the rights that a migration needs, if it failed for lack of one.
func mayNotMigrate(err error) error {
	switch e := serverError(err); {
	case e != nil && e.Code == "3F000":
		return fmt.Errorf("the search_path has no schema to make the tables in: make one, and set the search_path (?search_path=, or ALTER ROLE): %w", err)
	case !lacksRight(err):
		return explain(err)
	}
	return fmt.Errorf("the server's user may not make the tables: give it USAGE and CREATE on the schema (GRANT USAGE, CREATE ON SCHEMA), "+
		"or let a user with these rights migrate once (?migrate=true, postgres.Migrate, dlock migrate, or the files of package migrations) "+
		"and open without migrate=true: %w", err)
}

// Revert removes the tables, and with them the last tokens of all names: afterwards only the
// server's clock makes fencing tokens grow. While anything is held or waits, it changes nothing and
// fails with an error that matches [driver.ErrHeld], unless force is set: then holds are lost. It
// refuses tables of another version with an error that matches [driver.ErrUnsupported]. It does all
// or nothing. The user has to own the tables. db is as for [Migrate].
func Revert(ctx context.Context, db *sql.DB, force bool) error {
	if db == nil {
		return errNoPool
	}
	p := &pool{source: sqlSource{db}}
	s, err := p.lookToMigrate(ctx)
	if err != nil {
		return err
	}
	if err := s.mismatch(); errors.Is(err, driver.ErrUnsupported) {
		return err
	}
	downs, err := fs.Glob(migrations.Files, "postgres/*.down.sql")
	if err != nil {
		return err
	}
	slices.Sort(downs)
	slices.Reverse(downs)
	err = p.transaction(ctx, func(do doer) error {
		if err := do(migrationLock, nil); err != nil {
			return err
		}
		do = s.named(do)
		if !force {
			if err := s.standing(do); err != nil {
				return err
			}
		}
		return apply(do, downs)
	})
	if lacksRight(err) {
		return fmt.Errorf("the server's user may not remove the tables: only their owner may: %w", err)
	}
	return explain(err)
}

// standing returns an error if anything is held or waits. It locks the tables first, so that no
// request arrives between the count and their removal.
func (s *site) standing(do doer) error {
	have := func(table string) bool { return len(s.found[table].columns) > 0 }
	var counts []string
	if have("dlock_locks") {
		counts = append(counts, "LOCK TABLE dlock_locks IN ACCESS EXCLUSIVE MODE", "SELECT count(*) FROM dlock_locks WHERE held_until > clock_timestamp()")
	}
	if have("dlock_requests") {
		waits := " AND (NOT q.exclusive OR q.kind = 'join' OR NOT EXISTS (SELECT 1 FROM dlock_locks l " +
			"WHERE l.prefix = q.prefix AND l.name = q.name AND q.place <= l.head))"
		if !have("dlock_locks") {
			waits = ""
		}
		counts = append(counts, "LOCK TABLE dlock_requests IN ACCESS EXCLUSIVE MODE",
			"SELECT count(*) FROM dlock_requests q WHERE q.expires_at > clock_timestamp() AND q.kind <> 'tombstone'"+waits)
	}
	var total int64
	for _, stmt := range counts {
		each := func(row pgx.Rows) error {
			var n int64
			err := row.Scan(&n)
			total += n
			return err
		}
		if strings.HasPrefix(stmt, "LOCK") {
			each = nil
		}
		if err := do(stmt, each); err != nil {
			return err
		}
	}
	if total > 0 {
		return fmt.Errorf("%w: %d requests hold or wait in this database; let them end, or force the removal, which takes their locks away", driver.ErrHeld, total)
	}
	return nil
}

// Cleanup removes the rows of names, of any prefix, that are not in use and were not held for the
// given time, and returns how many names it removed, also with an error. Run it now and then where
// names are used once. The tokens of a removed name go on growing when it is used again, unless the
// server's clock was set back by more than that time, or a statement took longer: an hour is
// enough, and a minute the least. The user needs DELETE on dlock_locks too. A negative time, or a
// nil db, is an error that matches [driver.ErrInvalid]. db is as for [Migrate].
func Cleanup(ctx context.Context, db *sql.DB, unused time.Duration) (int, error) {
	if unused < 0 {
		return 0, fmt.Errorf("%w time for Cleanup: it is negative", driver.ErrInvalid)
	}
	if db == nil {
		return 0, errNoPool
	}
	p := &pool{source: sqlSource{db}}
	s, err := p.lookToMigrate(ctx)
	if err == nil {
		err = s.mismatch()
	}
	if err != nil {
		return 0, err
	}
	total, prefix, name := 0, []byte{}, []byte{} // no name is empty
	for {
		removed, last := 0, [2][]byte{}
		err := p.transaction(ctx, func(do doer) error {
			removed, last = 0, [2][]byte{}
			return removePage(s.named(do), unused, prefix, name, &last, &removed)
		})
		if err != nil {
			return total, explain(err)
		}
		if total += removed; last[1] == nil {
			return total, nil
		}
		prefix, name = last[0], last[1]
	}
}

// removePage removes what is not in use among the next thousand names behind prefix and name, and
// sets last to the last of them. The primary key leads it: an index for this would cost each lock a
// write.
//
// It locks the rows of the names before it searches for their requests, in a statement of its own,
// which sees what was committed before. A client locks the row of a name before it adds a request,
// so none can come in between. Rows that are locked are in use, and left out: nothing here waits.
func removePage(do doer, unused time.Duration, prefix, name []byte, last *[2][]byte, removed *int) error {
	err := do("SELECT encode(prefix, 'hex'), encode(name, 'hex') FROM dlock_locks WHERE (prefix, name) > ($1::bytea, $2::bytea) ORDER BY prefix, name LIMIT 1000",
		func(row pgx.Rows) error { return row.Scan((*hexed)(&last[0]), (*hexed)(&last[1])) }, prefix, name)
	if err != nil || last[1] == nil {
		return err
	}
	var prefixes, names [][]byte
	err = do(`SELECT encode(prefix, 'hex'), encode(name, 'hex') FROM dlock_locks WHERE (prefix, name) > ($1::bytea, $2::bytea) AND (prefix, name) <= ($3::bytea, $4::bytea)
		AND held_until <= clock_timestamp() AND held_since < clock_timestamp() - $5 * interval '1 microsecond'
		AND token < extract(epoch FROM clock_timestamp()) * 1000000 - $5 FOR UPDATE SKIP LOCKED`,
		func(row pgx.Rows) error {
			var p, n hexed
			err := row.Scan(&p, &n)
			prefixes, names = append(prefixes, p), append(names, n)
			return err
		}, prefix, name, last[0], last[1], unused.Microseconds())
	if err != nil || len(names) == 0 {
		return err
	}
	err = do(`DELETE FROM dlock_requests WHERE id IN (SELECT q.id FROM dlock_requests q
		JOIN unnest($1::bytea[], $2::bytea[]) l (prefix, name) ON q.prefix = l.prefix AND q.name = l.name
		WHERE q.expires_at <= clock_timestamp() FOR UPDATE OF q SKIP LOCKED)`, nil, prefixes, names)
	if err != nil {
		return err
	}
	return do(`DELETE FROM dlock_locks d USING unnest($1::bytea[], $2::bytea[]) l (prefix, name)
		WHERE d.prefix = l.prefix AND d.name = l.name
		AND NOT EXISTS (SELECT 1 FROM dlock_requests q WHERE q.prefix = l.prefix AND q.name = l.name) RETURNING 1`,
		func(pgx.Rows) error { *removed++; return nil }, prefixes, names)
}
