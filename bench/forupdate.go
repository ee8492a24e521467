package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// ofForUpdate is what a table of locks usually is: a row for each, read with FOR UPDATE and written
// in one transaction, with a lease and a token, on a pool of 64 connections. A locker that finds
// the lock taken tries again after 10 ms.
var ofForUpdate = contender{name: "FOR UPDATE", open: func(ctx context.Context, addr string) (client, error) {
	db, err := pool(addr)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(64)
	db.SetMaxIdleConns(64)
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS bench_locks (name VARBINARY(255) PRIMARY KEY, holder BIGINT NOT NULL, token BIGINT NOT NULL, expires DATETIME(6) NOT NULL)")
	if err != nil {
		db.Close()
		return nil, err
	}
	return forUpdateClient{db}, nil
}}

type forUpdateClient struct{ db *sql.DB }

// holders numbers the lockers.
var holders atomic.Int64

// locker makes the row.
func (c forUpdateClient) locker(ctx context.Context, name string) (locker, error) {
	_, err := c.db.ExecContext(ctx, "INSERT IGNORE INTO bench_locks VALUES (?, 0, 0, NOW(6))", name)
	return forUpdateLocker{c.db, name, holders.Add(1)}, err
}

func (c forUpdateClient) close() { c.db.Close() }

type forUpdateLocker struct {
	db   *sql.DB
	name string
	me   int64
}

func (l forUpdateLocker) lock(ctx context.Context) error {
	for {
		ok, err := l.try()
		var refused *mysql.MySQLError
		switch {
		case ok:
			return nil
		case errors.As(err, &refused) && (refused.Number == 1213 || refused.Number == 1205 || refused.Number == 1020):
			// a deadlock, a wait that took too long, a record that changed: try again
		case err != nil:
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// try does not end with a context: the connection would end too, while the server would keep its
// place in the queue for the row.
func (l forUpdateLocker) try() (bool, error) {
	ctx := context.Background()
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	var free bool
	err = tx.QueryRowContext(ctx, "SELECT holder = 0 OR expires < NOW(6) FROM bench_locks WHERE name = ? FOR UPDATE", l.name).Scan(&free)
	if err != nil || !free {
		return false, err
	}
	update := fmt.Sprintf("UPDATE bench_locks SET holder = ?, token = token + 1, expires = NOW(6) + INTERVAL %d SECOND WHERE name = ?", int(ttl.Seconds()))
	if _, err := tx.ExecContext(ctx, update, l.me, l.name); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

func (l forUpdateLocker) unlock() error {
	_, err := l.db.ExecContext(context.Background(), "UPDATE bench_locks SET holder = 0 WHERE name = ? AND holder = ?", l.name, l.me)
	return err
}

func (l forUpdateLocker) close() {}
