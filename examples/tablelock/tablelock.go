// Package tablelock takes part in the locks of the table that many teams wrote themselves: a row
// for each lock, with its holder, how often the holder has taken it, and when that ends. It is
// taken by SELECT … FOR UPDATE. Copy the package, and change the statements to those of your table.
package tablelock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

// Schema is the table, for MySQL and MariaDB. Names are bytes: a column of text with a collation
// that ignores case would make one lock of the names "a" and "A".
const Schema = `CREATE TABLE IF NOT EXISTS locks (
	name    VARBINARY(255) NOT NULL PRIMARY KEY,
	holder  VARCHAR(255),
	count   INT NOT NULL,
	expires DATETIME(6) NOT NULL
)`

// Open returns a client whose locks are rows of the table. The caller closes the client, and then
// the pool.
func Open(db *sql.DB, opts ...dlock.Option) (*dlock.Client, error) {
	b, err := New(db)
	if err != nil {
		return nil, err
	}
	return dlock.New(b, opts...)
}

// New returns the backend of Open.
func New(db *sql.DB) (*adapt.Backend, error) {
	return adapt.New(table{db}, adapt.Options{
		Backend: "mysql", Format: "table locks", Outlives: true, Durable: true, MinTTL: 100 * time.Millisecond,
	})
}

// table implements [adapt.Calls] and [adapt.Inspector]. The server's clock decides. The peers must
// use the same clock: if your table has times by NOW(), replace UTC_TIMESTAMP(6) by NOW(6).
type table struct{ db *sql.DB }

// row is a row of the table, which is locked.
type row struct {
	holder string        // "": the lock is free
	left   time.Duration // until its time is over; it may be too large by the wait for the row
}

// is reports whether the request has the lock.
func (w row) is(r driver.Request) bool {
	return w.left > 0 && strings.HasPrefix(w.holder, mark+r.ID.String())
}

// mark is before the IDs of dlock's holders. Holders of other programs do not begin with it.
const mark = "dlock-"

// Try implements [adapt.Calls].
func (t table) Try(ctx context.Context, r driver.Request) error {
	return t.locked(ctx, r.Name, func(tx *sql.Tx, w row) error {
		if w.holder != "" && w.left > 0 && !w.is(r) {
			return &adapt.HeldError{By: driver.HeldError{Label: w.holder}, Left: w.left}
		}
		_, err := tx.ExecContext(ctx, `UPDATE locks SET holder = LEFT(?, 255), count = 1,
			expires = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6)) WHERE name = ?`,
			mark+r.ID.String()+" "+r.Label, max(r.TTL, w.mine(r)).Microseconds(), []byte(r.Name))
		return err
	})
}

// mine returns how long the hold of the request lasts; 0: it has none.
func (w row) mine(r driver.Request) time.Duration {
	if w.is(r) {
		return w.left
	}
	return 0
}

// Extend implements [adapt.Calls].
func (t table) Extend(ctx context.Context, r driver.Request, ttl time.Duration) error {
	return t.locked(ctx, r.Name, func(tx *sql.Tx, w row) error {
		if !w.is(r) {
			return driver.ErrLost
		}
		_, err := tx.ExecContext(ctx, `UPDATE locks
			SET expires = GREATEST(expires, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6))) WHERE name = ?`,
			ttl.Microseconds(), []byte(r.Name))
		return err
	})
}

// Release implements [adapt.Calls].
func (t table) Release(ctx context.Context, r driver.Request, after time.Duration) error {
	return t.locked(ctx, r.Name, func(tx *sql.Tx, w row) error {
		if !w.is(r) {
			return driver.ErrLost
		}
		_, err := tx.ExecContext(ctx, `UPDATE locks SET holder = IF(?, holder, NULL), count = IF(?, count, 0),
			expires = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6)) WHERE name = ?`,
			after > 0, after > 0, after.Microseconds(), []byte(r.Name))
		return err
	})
}

// Holder implements [adapt.Inspector].
func (t table) Holder(ctx context.Context, name string) (*driver.Entry, error) {
	w, err := read(t.db.QueryRowContext(ctx, query, []byte(name)))
	if errors.Is(err, sql.ErrNoRows) || err == nil && (w.holder == "" || w.left <= 0) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e := &driver.Entry{Left: w.left}
	id, label, _ := strings.Cut(strings.TrimPrefix(w.holder, mark), " ")
	if e.Label = label; e.ID.UnmarshalText([]byte(id)) != nil {
		e.Label, e.Foreign = w.holder, true
	}
	return e, nil
}

const query = `SELECT COALESCE(holder, ''), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires)
	FROM locks WHERE name = ?`

func read(r *sql.Row) (w row, err error) {
	var micros int64
	err = r.Scan(&w.holder, &micros)
	w.left = time.Duration(micros) * time.Microsecond
	return w, err
}

// locked calls f in a transaction that has locked the row, which is added if there is none, and
// commits if f returns nil.
func (t table) locked(ctx context.Context, name string, f func(*sql.Tx, row) error) error {
	for {
		err := t.inTx(ctx, name, f)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = t.db.ExecContext(ctx, `INSERT IGNORE INTO locks (name, count, expires) VALUES (?, 0, UTC_TIMESTAMP(6))`, []byte(name))
		if err != nil {
			return err
		}
	}
}

func (t table) inTx(ctx context.Context, name string, f func(*sql.Tx, row) error) error {
	tx, err := t.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	w, err := read(tx.QueryRowContext(ctx, query+" FOR UPDATE", []byte(name)))
	if err != nil {
		return err
	}
	if err := f(tx, w); err != nil {
		return err
	}
	return tx.Commit()
}
