package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

// Migrate creates the tables that this version of the driver needs, dlock_locks and dlock_requests.
// It inspects the database itself: it does nothing if both tables exist, however they were made,
// creates the ones that are missing, and refuses tables of another version with an error that
// matches [driver.ErrUnsupported]. It may run several times at once. The user needs CREATE and
// SELECT.
func Migrate(ctx context.Context, db *sql.DB) error {
	if db == nil {
		return errNoPool
	}
	return (&pool{db: db}).migrate(ctx)
}

// migrationTime is the time that a statement of a migration has. A table is made in a moment,
// unless another migration or a backup keeps the statement waiting.
const migrationTime = time.Minute

func (p *pool) migrate(ctx context.Context) error {
	if _, err := p.readSchema(ctx, patience); !errors.Is(err, errSchema) {
		return mayNotMigrate(explain(err))
	}
	if err := p.apply(ctx, "mysql/*.up.sql", nil); err != nil {
		return mayNotMigrate(err)
	}
	_, err := p.readSchema(ctx, patience) // tables of another version may have come meanwhile
	return explain(err)
}

// apply executes the files that match pattern, over one connection, unless before fails.
func (p *pool) apply(ctx context.Context, pattern string, before func(do func(stmt string) (answer, error)) error) error {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return plain(ctx, err, migrationTime)
	}
	defer conn.Close()
	defer discard(conn) // its settings have changed
	do := func(stmt string) (a answer, err error) {
		within, cancel := context.WithTimeout(ctx, migrationTime)
		defer cancel()
		return a, plain(ctx, a.fill(within, conn, stmt), migrationTime)
	}
	if _, err := do("SET SESSION sql_mode = 'STRICT_ALL_TABLES', SESSION autocommit = 1, SESSION completion_type = 0, SESSION lock_wait_timeout = 50"); err != nil {
		return err
	}
	if _, err := do("SET SESSION TRANSACTION READ WRITE"); err != nil {
		return err
	}
	files, err := fs.Glob(migrations.Files, pattern)
	if err != nil {
		return err
	}
	slices.Sort(files)
	if before != nil {
		if err := before(do); err != nil {
			return err
		}
	}
	for _, f := range files {
		stmt, err := migrations.Files.ReadFile(f)
		if err != nil {
			return err
		}
		if _, err := do(string(stmt)); err != nil {
			return fmt.Errorf("migration %s: %w", path.Base(f), err)
		}
	}
	return nil
}

// mayNotMigrate adds the rights that a migration needs, if it failed for lack of one.
func mayNotMigrate(err error) error {
	if !lacksRight(err) {
		return err
	}
	return fmt.Errorf("the server's user may not make the tables: give it CREATE and SELECT on the database, or let a user with these rights migrate once "+
		"(?migrate=true, mysql.Migrate, dlock migrate, or the files of package migrations) and open without migrate=true: %w", err)
}

// Revert removes the tables, and with them the last tokens of all names: afterwards only the
// server's clock makes fencing tokens grow. While anything is held or waits, it changes nothing and
// fails with an error that matches [driver.ErrHeld], unless force is set: then holds are lost. It
// refuses tables of another version with an error that matches [driver.ErrUnsupported]. The user
// needs SELECT, DROP and LOCK TABLES.
func Revert(ctx context.Context, db *sql.DB, force bool) error {
	if db == nil {
		return errNoPool
	}
	p := &pool{db: db}
	if _, err := p.readSchema(ctx, patience); errors.Is(err, errOtherSchema) {
		return err
	} else if err != nil && !errors.Is(err, errSchema) {
		return mayNotRevert(explain(err))
	}
	return mayNotRevert(p.apply(ctx, "mysql/*.down.sql", func(do func(string) (answer, error)) error {
		if force {
			return nil
		}
		return standingRequests(do)
	}))
}

// standingRequests returns an error if anything is held or waits. It locks the tables first, so
// that no request arrives between the count and their removal.
func standingRequests(do func(stmt string) (answer, error)) error {
	_, err := do("LOCK TABLES dlock_locks WRITE, dlock_locks AS l WRITE, dlock_requests WRITE, dlock_requests AS q WRITE")
	if err != nil && !lacksSchema(err) {
		return err
	}
	total := 0
	for _, count := range []string{
		"SELECT COUNT(*) FROM dlock_locks WHERE held_until > UTC_TIMESTAMP(6) LIMIT 1",
		"SELECT COUNT(*) FROM dlock_requests q LEFT JOIN dlock_locks l ON l.prefix = q.prefix AND l.name = q.name WHERE q.expires_at > UTC_TIMESTAMP(6) " +
			"AND q.kind <> 'tombstone' AND (l.head IS NULL OR q.kind = 'join' OR q.mode = 'shared' OR q.place > l.head) LIMIT 1",
	} {
		a, err := do(count)
		if lacksSchema(err) {
			continue
		}
		if err != nil {
			return err
		}
		n := 0
		row, err := a.single(1)
		if err == nil {
			_, err = fmt.Sscan(row[0], &n)
		}
		if err != nil {
			return err
		}
		total += n
	}
	if total > 0 {
		return fmt.Errorf("%w: %d requests hold or wait in this database; let them end, or force the removal, which takes their locks away", driver.ErrHeld, total)
	}
	return nil
}

// mayNotRevert adds the rights that Revert needs, if it failed for lack of one.
func mayNotRevert(err error) error {
	if !lacksRight(err) {
		return err
	}
	return fmt.Errorf("the server's user may not remove the tables: it needs SELECT, DROP and LOCK TABLES on the database: %w", err)
}
