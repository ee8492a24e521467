package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	// sweepTime is the time between two sweeps of a client that makes calls.
	sweepTime = 3 * time.Second
	// deadTime is the time between two sweeps of a client that waits, and finds something to sweep.
	deadTime = time.Second
)

// sweepSoon deletes some expired rows in the background, if that was not done for the given time.
// b.mu is held.
func (b *Backend) sweepSoon(after time.Duration) {
	if time.Since(b.swept) > after {
		b.swept = time.Now()
		b.life.Go(b.sweepNow)
	}
}

// sweepNow deletes a hundred expired rows, and repeats that while there are as many.
func (b *Backend) sweepNow() {
	for range 50 {
		a, err := b.pool.ask(b.life.Context(), callTimeout, sweep, false)
		if err != nil || a.affected < 100 {
			return
		}
	}
}

// Cleanup removes the rows of names, of any prefix, that are not in use and were not held for the
// given time, and returns how many names it removed, also with an error. Run it now and then where
// names are used once. The tokens of a removed name go on growing when it is used again, unless the
// server's clock was set back by more than that time, or a statement took longer: an hour is
// enough, and a minute the least. The user needs DELETE on dlock_locks too. A negative time, or a
// nil db, is an error that matches [driver.ErrInvalid].
func Cleanup(ctx context.Context, db *sql.DB, unused time.Duration) (int, error) {
	if unused < 0 {
		return 0, fmt.Errorf("%w time for Cleanup: it is negative", driver.ErrInvalid)
	}
	if db == nil {
		return 0, errNoPool
	}
	p := &pool{db: db}
	if _, err := p.readSchema(ctx, patience); err != nil {
		return 0, explain(err)
	}
	do := func(stmt string) (a answer, err error) {
		for begun := time.Now(); ; {
			a, err = p.ask(ctx, migrationTime, stmt, true)
			if kindOf(err, true) != collided || time.Since(begun) > patience {
				return a, explain(err)
			}
		}
	}
	for {
		a, err := do(sweep)
		if err != nil {
			return 0, err
		}
		if a.affected == 0 {
			break
		}
	}
	total, prefix, name := 0, "X''", "X''"
	for {
		// in pieces of the primary key: an index for this would cost each lock a write
		a, err := do(fill(page, ":prefix", prefix, ":name", name))
		if err != nil {
			return total, err
		}
		if len(a.rows) == 0 {
			return total, nil
		}
		last := a.rows[len(a.rows)-1]
		from := fill(between, ":prefix", prefix, ":name", name, ":last_prefix", "X'"+last[0]+"'", ":last_name", "X'"+last[1]+"'")
		d, err := do(fill(cleanup, ":unused", strconv.FormatInt(unused.Microseconds(), 10)) + from)
		if err != nil {
			return total, err
		}
		total += int(d.affected)
		prefix, name = "X'"+last[0]+"'", "X'"+last[1]+"'"
	}
}

var (
	page = `SELECT HEX(prefix), HEX(name) FROM dlock_locks FORCE INDEX (PRIMARY)
		WHERE prefix = :prefix AND name > :name OR prefix > :prefix ORDER BY prefix, name LIMIT 1000`
	between = ` AND (prefix = :prefix AND name > :name OR prefix > :prefix) AND (prefix = :last_prefix AND name <= :last_name OR prefix < :last_prefix)`
	cleanup = parts.Replace(`DELETE FROM dlock_locks WHERE held_since < :now - INTERVAL :unused MICROSECOND AND held_until <= :now
		AND token < :micros - :unused
		AND NOT EXISTS (SELECT 1 FROM dlock_requests q WHERE q.prefix = dlock_locks.prefix AND q.name = dlock_locks.name)`)
)
