package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"
)

// Peer is a program that takes a lock of the server without dlock.
type Peer interface {
	// Lock waits for the lock. The program has it until it unlocks, and not longer than until.
	Lock(ctx context.Context) (until time.Time, unlock func(context.Context) error, err error)
}

// pause is how long a peer waits before it tries again.
const pause = 10 * time.Millisecond

// Textbook takes the lock of the table of examples/tablelock as textbooks do: in a transaction that
// has locked its row. The same holder takes it again by counting.
type Textbook struct {
	DB   *sql.DB
	Name string
	TTL  time.Duration
}

func (p Textbook) me() string { return fmt.Sprintf("worker-%d", os.Getpid()) }

// Lock implements [Peer].
func (p Textbook) Lock(ctx context.Context) (time.Time, func(context.Context) error, error) {
	if _, err := p.DB.ExecContext(ctx, "INSERT IGNORE INTO locks VALUES (?, NULL, 0, UTC_TIMESTAMP(6))", p.Name); err != nil {
		return time.Time{}, nil, err
	}
	for ; ctx.Err() == nil; time.Sleep(pause) {
		began := time.Now()
		got, err := p.try(ctx)
		if got || err != nil {
			return began.Add(p.TTL), p.unlock, err
		}
	}
	return time.Time{}, nil, ctx.Err()
}

func (p Textbook) try(ctx context.Context) (bool, error) {
	tx, err := p.DB.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	var free bool
	if err := tx.QueryRowContext(ctx, "SELECT holder IS NULL OR holder = ? OR expires < UTC_TIMESTAMP(6) FROM locks WHERE name = ? FOR UPDATE",
		p.me(), p.Name).Scan(&free); err != nil || !free {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE locks SET count = IF(holder = ? AND expires > UTC_TIMESTAMP(6), count + 1, 1), holder = ?,
		expires = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE name = ?`, p.me(), p.me(), p.TTL.Microseconds(), p.Name); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

func (p Textbook) unlock(ctx context.Context) error {
	_, err := p.DB.ExecContext(ctx, `UPDATE locks SET holder = IF(count = 1, NULL, holder), count = count - 1 WHERE name = ? AND holder = ?`, p.Name, p.me())
	return err
}

// ShedLock takes the lock of ShedLock's table as its JdbcTemplateLockProvider does: it inserts the
// row, or updates it once its time is over.
type ShedLock struct {
	DB      *sql.DB
	Name    string
	AtMost  time.Duration // lockAtMostFor
	AtLeast time.Duration // lockAtLeastFor
	DBTime  bool          // usingDbTime()
}

func (p ShedLock) me() string { return fmt.Sprintf("host-%d", os.Getpid()) }

func (p ShedLock) now() string {
	if p.DBTime {
		return "UTC_TIMESTAMP(3)"
	}
	return time.Now().UTC().Format("TIMESTAMP'2006-01-02 15:04:05.000'")
}

// Lock implements [Peer].
func (p ShedLock) Lock(ctx context.Context) (time.Time, func(context.Context) error, error) {
	for ; ctx.Err() == nil; time.Sleep(pause) {
		began := time.Now()
		got, err := p.try(ctx)
		if got || err != nil {
			return began.Add(p.AtMost), p.unlock, err
		}
	}
	return time.Time{}, nil, ctx.Err()
}

func (p ShedLock) try(ctx context.Context) (bool, error) {
	until := fmt.Sprintf("TIMESTAMPADD(MICROSECOND, %d, %s)", (p.AtMost + 2*time.Millisecond).Microseconds(), p.now())
	for _, statement := range []string{
		"INSERT IGNORE INTO shedlock (lock_until, locked_at, locked_by, name) VALUES (" + until + ", " + p.now() + ", ?, ?)",
		"UPDATE shedlock SET lock_until = " + until + ", locked_at = " + p.now() + ", locked_by = ? WHERE name = ? AND lock_until <= " + p.now(),
	} {
		res, err := p.DB.ExecContext(ctx, statement, p.me(), p.Name)
		if err != nil {
			return false, err
		}
		if n, err := res.RowsAffected(); n > 0 || err != nil {
			return n > 0, err
		}
	}
	return false, nil
}

func (p ShedLock) unlock(ctx context.Context) error {
	_, err := p.DB.ExecContext(ctx, "UPDATE shedlock SET lock_until = GREATEST("+p.now()+", TIMESTAMPADD(MICROSECOND, ?, locked_at)) WHERE name = ? AND locked_by = ?",
		p.AtLeast.Microseconds(), p.Name, p.me())
	return err
}

// NamedLock takes the named lock of a connection, which is the program's own.
type NamedLock struct {
	Conn *sql.Conn
	Name string
}

// Lock implements [Peer].
func (p NamedLock) Lock(ctx context.Context) (time.Time, func(context.Context) error, error) {
	for {
		var got sql.NullBool
		if err := p.Conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 10)", p.Name).Scan(&got); err != nil || got.Bool {
			return time.Now().Add(time.Hour), p.unlock, err
		}
	}
}

func (p NamedLock) unlock(ctx context.Context) error {
	_, err := p.Conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", p.Name)
	return err
}

// Pool returns a pool of the server with that URL. The caller closes it.
func Pool(url string) (*sql.DB, error) {
	d, err := mysqlConfig(url)
	if err != nil {
		return nil, err
	}
	return d.open(), nil
}
