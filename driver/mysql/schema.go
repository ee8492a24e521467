package mysql

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// schema is the number of the last migration that this driver knows. It works with no other
	// schema. A later migration that changes what a procedure means gives it other parameters. Then
	// the server refuses the calls of clients that run, and these ask for the number again.
	schema = 19
	// oldest is the first schema that later migrations lead on from. Those before it were never
	// released, and their files were others.
	oldest = 19
)

// checkSchema returns an error unless the schema is this driver's own. An older or a newer one may
// follow another protocol, and clients of both would stand in the same queues. It asks once.
func (p *pool) checkSchema(ctx context.Context) error {
	if p.checked.Load() {
		return nil
	}
	have, err := version(p.ask(ctx, callTimeout, statement("version")))
	var e *mysql.MySQLError
	switch {
	case err == nil:
		err = mismatch(have, oldest, schema)
	case !errors.As(err, &e):
		err = &kit.NotSent{Err: err}
	}
	p.checked.Store(err == nil)
	return err
}

// mismatch says what to do about the schema that the database has, if the driver needs another one.
// The error matches errSchema if it can be migrated, and errOtherSchema if it cannot.
func mismatch(have, oldest, need int) error {
	switch {
	case have > need:
		return fmt.Errorf("%w: it has number %d, of a newer version, and this one needs %d: "+
			"let all programs use the newer version", errOtherSchema, have, need)
	case have > 0 && have < oldest:
		return fmt.Errorf("%w: it has number %d, of a version that was never released, and this one needs %d: "+
			"while no program uses them, drop the tables, the view and the procedures dlock_…, and migrate again",
			errOtherSchema, have, need)
	case have > 0 && have < need:
		return fmt.Errorf("%w (its schema has number %d, of an older version, and this one needs %d)", errSchema, have, need)
	case have < need:
		return errSchema
	}
	return nil
}

// version reads the answer to dlock_version: the number of the last migration that was applied. It
// is 0 if there is no such procedure.
func version(a answer, err error) (int, error) {
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == 1305 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	row, err := a.sets.single(1)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(row[0])
}
