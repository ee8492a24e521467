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

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

// schema is the number of the last migration that this driver knows. It works with no other schema.
// A later migration that changes what a procedure means gives it other parameters, so that clients
// that are running then are refused by the server, and say errSchema.
const schema = 17

// oldest is the first schema that later migrations lead on from. Those before it were never
// released, and their files were others.
const oldest = 17

// fit says whether the schema is this driver's own: an older or a newer one may follow another
// protocol, and then clients of both would stand in the same queues. It asks once.
func (p *pool) fit(ctx context.Context) error {
	if p.fits.Load() {
		return nil
	}
	have, err := version(p.ask(ctx, callTimeout, statement("version")))
	var e *mysql.MySQLError
	switch {
	case err == nil:
		err = mismatch(have)
	case !errors.As(err, &e):
		err = &notSent{err}
	}
	p.fits.Store(err == nil)
	return err
}

// mismatch says what to do about a schema that is not this driver's; errSchema: migrate.
func mismatch(have int) error {
	switch {
	case have > schema:
		return fmt.Errorf("%w: it has number %d, of a newer version, and this one needs %d: let all programs use the newer version", errOther, have, schema)
	case have > 0 && have < oldest:
		return fmt.Errorf("%w: it has number %d, of a version that was never released, and this one needs %d: "+
			"while no program uses them, drop the tables, the view and the procedures dlock_…, and migrate anew", errOther, have, schema)
	case have < schema:
		return errSchema
	}
	return nil
}

var errOther = errors.New("the database has the schema of another version of dlock")

// Migrate brings the database of the pool to the schema that this version of the driver needs. It
// does nothing if that is there already, whoever applied it, goes on where an earlier one was
// interrupted, and refuses the schema of a newer version. Several at once wait for each other. The
// user needs CREATE, DROP, CREATE VIEW and CREATE ROUTINE, at run time none of them.
func Migrate(ctx context.Context, db *sql.DB) error {
	return (&pool{db: db}).migrate(ctx)
}

// migrationTime is for one statement of a migration: a table is made in a moment, unless another
// migration or a backup keeps it waiting.
const migrationTime = time.Minute

func (p *pool) migrate(ctx context.Context) error {
	switch err := p.fit(ctx); {
	case lacksRight(err):
		return mayNot(err)
	case !errors.Is(err, errSchema):
		return explain(err)
	}
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := p.db.Conn(within)
	if err != nil {
		return plain(ctx, err, callTimeout)
	}
	defer conn.Close()
	defer discard(conn) // with settings that are not the user's
	do := func(stmt string) (results, error) {
		within, cancel := context.WithTimeout(ctx, migrationTime)
		defer cancel()
		sets, err := query(within, conn, stmt)
		return sets, plain(ctx, err, migrationTime)
	}
	return migrateOn(do)
}

// migrateOn applies what is missing on one connection, whose statements do executes.
func migrateOn(do func(stmt string) (results, error)) error {
	for _, set := range []string{ // procedures keep the sql_mode of their creation
		"SET SESSION sql_mode = 'STRICT_ALL_TABLES', SESSION completion_type = 0, SESSION autocommit = 1, SESSION lock_wait_timeout = 50",
		"SET SESSION TRANSACTION READ WRITE",
	} {
		if _, err := do(set); err != nil {
			return err
		}
	}
	// which goes with the connection
	sets, err := do("SELECT GET_LOCK(CONCAT('dlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)), 50)")
	if err != nil {
		return err
	}
	if row, err := single(sets, 1); err != nil || row[0] != "1" {
		return errors.New("another migration of this database goes on for almost a minute")
	}
	sets, err = do(statement("version"))
	have, err := version(answer{sets: sets}, err)
	if err != nil {
		return err
	}
	if err := mismatch(have); !errors.Is(err, errSchema) {
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
			return fmt.Errorf("migration %s: %w", path.Base(f), mayNot(err))
		}
	}
	return nil
}

// mayNot says what a migration needs, if that is what it lacks.
func mayNot(err error) error {
	if !lacksRight(err) {
		return err
	}
	return fmt.Errorf("the server's user may not make the tables and procedures: give it CREATE, DROP, CREATE VIEW and CREATE ROUTINE on the database, "+
		"or let somebody who has them migrate once (?migrate=true, mysql.Migrate, or the files of package migrations) and open without migrate=true: %w", err)
}

// version reads the number of the last migration that was applied from the answer to dlock_version;
// 0: not all of the first.
func version(a answer, err error) (int, error) {
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == 1305 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	row, err := single(a.sets, 1)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(row[0])
}

// Cleanup removes what the tables keep of names, of any prefix, which nobody uses and of which the
// last token is older than the given time, and returns how many names that were. It disturbs
// nobody; run it now and then where names are used once. Tokens grow across it as long as the
// server's clock is not set back by more than that time.
func Cleanup(ctx context.Context, db *sql.DB, unused time.Duration) (int, error) {
	const batch = 1000
	if unused < 0 {
		return 0, fmt.Errorf("%w: the time is negative", driver.ErrInvalid)
	}
	p := &pool{db: db}
	if err := p.fit(ctx); err != nil {
		return 0, explain(err)
	}
	for total := 0; ; {
		a, err := p.ask(ctx, migrationTime, statement("cleanup", unused, batch))
		if err != nil {
			return total, explain(err)
		}
		row, err := single(a.sets, 1)
		if err != nil {
			return total, err
		}
		n, err := strconv.Atoi(row[0])
		total += n
		if err != nil || n < batch/2 { // others may have come between
			return total, err
		}
	}
}
