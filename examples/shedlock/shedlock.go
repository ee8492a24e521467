// Package shedlock takes part in the locks of ShedLock, whose table is name, lock_until, locked_at
// and locked_by. A task that a Java service runs under ShedLock, and a Go service under the same
// name, runs in one of them at a time. Copy the package.
//
//   - UnlockAfter of package dlock is lockAtLeastFor, and OncePer makes sure that a task runs once
//     per period, whichever service runs it.
//   - lockAtMostFor is the TTL. dlock extends a hold while the task runs, as KeepAliveLockProvider
//     does.
//   - Without usingDbTime, the clocks of all services have to agree. A clock that is behind takes
//     locks that are not over, with ShedLock and with this package.
//   - Older versions of ShedLock without usingDbTime release a lock by its name alone, so a task
//     that took longer than its lockAtMostFor frees the lock of the next holder.
package shedlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

// Schema is ShedLock's table, as its documentation has it for MySQL and MariaDB.
const Schema = `CREATE TABLE IF NOT EXISTS shedlock (
	name       VARCHAR(64) NOT NULL PRIMARY KEY,
	lock_until TIMESTAMP(3) NOT NULL,
	locked_at  TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
	locked_by  VARCHAR(255) NOT NULL
)`

// Clock says which clock the services use. All have to use the same.
type Clock bool

const (
	DBTime     Clock = false // that of the database: usingDbTime()
	ClientTime Clock = true  // those of the services: without usingDbTime()
)

// Open returns a client whose locks are those of ShedLock. The connections must have the time zone
// of ShedLock's. The caller closes the client, and then the pool.
func Open(db *sql.DB, c Clock, opts ...dlock.Option) (*dlock.Client, error) {
	b, err := New(db, c)
	if err != nil {
		return nil, err
	}
	return dlock.New(b, opts...)
}

// New returns the backend of Open.
func New(db *sql.DB, c Clock) (*adapt.Backend, error) {
	return adapt.New(table{db, c}, adapt.Options{
		Backend: "mysql", Format: "shedlock", Outlives: true, Durable: true, MinTTL: 100 * time.Millisecond,
	})
}

// table implements [adapt.Calls], [adapt.Inspector] and [adapt.Namer].
type table struct {
	db *sql.DB
	c  Clock
}

// row is a row of the table, which is locked.
type row struct {
	name string
	by   string
	left time.Duration // until lock_until; it may be too large by the wait for the row
	age  time.Duration // since locked_at
}

// is reports whether the request has the lock.
func (w row) is(r driver.Request) bool {
	return w.left > 0 && strings.HasPrefix(w.by, mark+r.ID.String())
}

// mark is before the IDs of dlock's holders. ShedLock writes the name of the host.
const mark = "dlock-"

// whole is added to each time: the table has milliseconds, which are rounded.
const whole = 2 * time.Millisecond

// CheckName implements [adapt.Namer].
func (t table) CheckName(name string) error {
	if !utf8.ValidString(name) || utf8.RuneCountInString(name) > 64 || strings.TrimRight(name, " ") != name {
		return fmt.Errorf("%w name: ShedLock's table has at most 64 characters of UTF-8 that do not end in a space", driver.ErrInvalid)
	}
	return nil
}

// Try implements [adapt.Calls].
func (t table) Try(ctx context.Context, r driver.Request) error {
	return t.locked(ctx, r.Name, func(tx *sql.Tx, w row) error {
		if w.left > 0 && !w.is(r) {
			return &adapt.HeldError{By: driver.HeldError{Label: w.by, Age: w.age}, Left: w.left}
		}
		ttl, by := r.TTL, mark+r.ID.String()+" "+r.Label
		if w.is(r) {
			ttl = max(ttl, w.left)
		}
		now := t.now()
		_, err := tx.ExecContext(ctx, `UPDATE shedlock SET locked_at = `+now+`, locked_by = LEFT(?, 255),
			lock_until = TIMESTAMPADD(MICROSECOND, ?, `+now+`) WHERE name = ?`, by, (ttl + whole).Microseconds(), r.Name)
		return err
	})
}

// Extend implements [adapt.Calls].
func (t table) Extend(ctx context.Context, r driver.Request, ttl time.Duration) error {
	return t.locked(ctx, r.Name, func(tx *sql.Tx, w row) error {
		if !w.is(r) {
			return driver.ErrLost
		}
		_, err := tx.ExecContext(ctx, `UPDATE shedlock
			SET lock_until = GREATEST(lock_until, TIMESTAMPADD(MICROSECOND, ?, `+t.now()+`)) WHERE name = ?`,
			(ttl + whole).Microseconds(), r.Name)
		return err
	})
}

// Release implements [adapt.Calls].
func (t table) Release(ctx context.Context, r driver.Request, after time.Duration) error {
	return t.locked(ctx, r.Name, func(tx *sql.Tx, w row) error {
		if !w.is(r) {
			return driver.ErrLost
		}
		if after > 0 {
			after += whole
		}
		_, err := tx.ExecContext(ctx, `UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, ?, `+t.now()+`) WHERE name = ?`,
			after.Microseconds(), r.Name)
		return err
	})
}

// Holder implements [adapt.Inspector].
func (t table) Holder(ctx context.Context, name string) (*driver.Entry, error) {
	w, err := read(t.db.QueryRowContext(ctx, t.query(), name))
	if errors.Is(err, sql.ErrNoRows) || err == nil && w.left <= 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e := &driver.Entry{Left: w.left, Age: w.age}
	id, label, _ := strings.Cut(strings.TrimPrefix(w.by, mark), " ")
	if e.Label = label; e.ID.UnmarshalText([]byte(id)) != nil {
		e.Label, e.Foreign = w.by, true
	}
	return e, nil
}

// now is the time in SQL.
func (t table) now() string {
	if t.c == ClientTime {
		return time.Now().UTC().Format("TIMESTAMP'2006-01-02 15:04:05.000'")
	}
	return "UTC_TIMESTAMP(3)"
}

func (t table) query() string {
	return `SELECT name, locked_by, TIMESTAMPDIFF(MICROSECOND, ` + t.now() + `, lock_until),
		TIMESTAMPDIFF(MICROSECOND, locked_at, ` + t.now() + `) FROM shedlock WHERE name = ?`
}

func read(r *sql.Row) (w row, err error) {
	var left, age int64
	err = r.Scan(&w.name, &w.by, &left, &age)
	w.left, w.age = time.Duration(left)*time.Microsecond, time.Duration(age)*time.Microsecond
	return w, err
}

// locked calls f in a transaction that has locked the row, which is added if there is none, and
// commits if f returns nil. The collation of the table may find a row under another spelling: that
// is the same lock to ShedLock, and the name is refused.
func (t table) locked(ctx context.Context, name string, f func(*sql.Tx, row) error) error {
	for {
		err := t.inTx(ctx, name, f)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = t.db.ExecContext(ctx, `INSERT IGNORE INTO shedlock (name, lock_until, locked_at, locked_by)
			VALUES (?, `+t.now()+`, `+t.now()+`, 'dlock')`, name)
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
	w, err := read(tx.QueryRowContext(ctx, t.query()+" FOR UPDATE", name))
	if err != nil {
		return err
	}
	if w.name != name {
		return fmt.Errorf("%w name: use %q, it is the same lock", driver.ErrInvalid, w.name)
	}
	if err := f(tx, w); err != nil {
		return err
	}
	return tx.Commit()
}
