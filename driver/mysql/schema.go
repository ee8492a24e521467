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
	schema = 20
	// oldest is the first schema that later migrations lead on from. Those before it were never
	// released, and their files were others.
	oldest = 20
)

// checkSchema returns an error unless the schema is this driver's own. An older or a newer one may
// follow another protocol, and clients of both would stand in the same queues. It asks once.
func (p *pool) checkSchema(ctx context.Context) error {
	if p.checked.Load() {
		return nil
	}
	a, err := p.ask(ctx, callTimeout, statement("version"))
	have, err := version(a, err)
	var e *mysql.MySQLError
	switch {
	case err == nil:
		if err = mismatch(have, oldest, schema); err == nil {
			err = p.readPacket(a.sets)
		}
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

// leastPacket is what max_allowed_packet has to be at least. The greatest statement for one request
// has half of that.
const leastPacket = 8192

// readPacket reads from the answer to dlock_version how long a statement may be.
func (p *pool) readPacket(sets results) error {
	if len(sets) < 2 {
		return errHides
	}
	row, err := sets.single(1)
	if err != nil {
		return err
	}
	most, err := strconv.ParseInt(row[0], 10, 64)
	if err == nil && most < leastPacket {
		err = errPacket
	}
	p.packet.Store(most)
	return err
}

// room returns how many bytes the greatest argument of a statement may have.
func (p *pool) room() int {
	return int(max(p.packet.Load(), leastPacket)) - leastPacket/2
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
	if len(a.sets) == 0 {
		return 0, errHides
	}
	row, err := a.sets[:1].single(1)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(row[0])
}
