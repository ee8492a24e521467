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

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

// Revert removes the tables and procedures, and with them the last tokens of all names: fencing
// tokens go on by the server's clock alone. While something is held or waits it refuses with an
// error that matches [driver.ErrHeld], and leaves everything as it is, unless force is set: then
// holds are lost. It refuses the schema of a newer version. The user needs SELECT, DROP and ALTER
// ROUTINE; without force what CREATE needs too, should it have to undo what it began.
func Revert(ctx context.Context, db *sql.DB, force bool) error {
	if db == nil {
		return errNoPool
	}
	p := &pool{db: db}
	return mayNotRevert(p.onOne(ctx, func(do func(string) (results, error)) error { return revertOn(do, force) }))
}

// acquiring is the number of the first migration that brings a way to make a request.
const acquiring = 8

// revertOn takes back what migrateOn applied. Nobody can arrive once the procedures are gone, so
// what stands is counted again then.
func revertOn(do func(stmt string) (results, error), force bool) error {
	sets, err := do(statement("version"))
	have, err := version(answer{sets: sets}, err)
	if err != nil {
		return err
	}
	if err := mismatch(have, oldest, schema); errors.Is(err, errOtherSchema) {
		return err
	}
	if err := standing(do); err != nil && !force {
		return err
	}
	files, err := fs.Glob(migrations.Files, "mysql/*.down.sql")
	if err != nil {
		return err
	}
	slices.Sort(files)
	slices.Reverse(files)
	for _, f := range files {
		number, _, _ := strings.Cut(path.Base(f), "_")
		if n, _ := strconv.Atoi(number); n == acquiring-1 && !force {
			if err := standing(do); err != nil {
				return errors.Join(err, migrateOn(do))
			}
		}
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

// standing returns an error if something is held or waits.
func standing(do func(stmt string) (results, error)) error {
	sets, err := do("SELECT COUNT(*) FROM dlock_requests WHERE state IN ('waiting', 'granted', 'holding') AND expires_at > UTC_TIMESTAMP(6)")
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == 1146 {
		return nil // there is no such table
	}
	if err != nil {
		return err
	}
	row, err := sets.single(1)
	if err != nil || row[0] == "0" {
		return err
	}
	return fmt.Errorf("%w: %s requests hold or wait in this database; let them end, or force it, which takes their locks away", driver.ErrHeld, row[0])
}

// mayNotRevert says which rights it takes, if that is why it failed.
func mayNotRevert(err error) error {
	if !lacksRight(err) {
		return err
	}
	return fmt.Errorf("the server's user may not remove the tables and procedures: it needs SELECT, DROP and ALTER ROUTINE on the database: %w", err)
}
