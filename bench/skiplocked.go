package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ofSkipLocked is what a table of leases in PostgreSQL usually is: a row for each lock, read with
// FOR UPDATE SKIP LOCKED and written in one transaction, with a lease and a token. A locker that
// finds the lock taken, or another one at work on its row, tries again after 10 ms. The pool has as
// many connections as dlock's.
var ofSkipLocked = contender{name: "SKIP LOCKED", open: func(ctx context.Context, addr string) (client, error) {
	pool, err := pgxpool.New(ctx, postgresURL(addr)+"pool_max_conns=8")
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `SELECT pg_advisory_lock(1); -- IF NOT EXISTS alone may fail beside another client
		CREATE TABLE IF NOT EXISTS bench_locks (name text PRIMARY KEY, holder bigint NOT NULL, token bigint NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50);
		SELECT pg_advisory_unlock(1)`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return skipLockedClient{pool}, nil
}}

type skipLockedClient struct{ pool *pgxpool.Pool }

// locker makes the row.
func (c skipLockedClient) locker(ctx context.Context, name string) (locker, error) {
	_, err := c.pool.Exec(ctx, "INSERT INTO bench_locks VALUES ($1, 0, 0, clock_timestamp()) ON CONFLICT DO NOTHING", name)
	return skipLockedLocker{c.pool, name, holders.Add(1)}, err
}

func (c skipLockedClient) close() { c.pool.Close() }

type skipLockedLocker struct {
	pool *pgxpool.Pool
	name string
	me   int64
}

func (l skipLockedLocker) lock(ctx context.Context) error {
	for {
		ok, err := l.try()
		if ok || err != nil {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// try does not end with a context: the connection would end too, and the pool would open another.
func (l skipLockedLocker) try() (bool, error) {
	ctx := context.Background()
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(ctx)
	var free bool
	err = tx.QueryRow(ctx, "SELECT holder = 0 OR expires < clock_timestamp() FROM bench_locks WHERE name = $1 FOR UPDATE SKIP LOCKED", l.name).Scan(&free)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil || !free {
		return false, err
	}
	_, err = tx.Exec(ctx, "UPDATE bench_locks SET holder = $2, token = token + 1, expires = clock_timestamp() + $3::bigint * interval '1 second' WHERE name = $1",
		l.name, l.me, int64(ttl.Seconds()))
	if err != nil {
		return false, err
	}
	return true, tx.Commit(ctx)
}

func (l skipLockedLocker) unlock() error {
	_, err := l.pool.Exec(context.Background(), "UPDATE bench_locks SET holder = 0 WHERE name = $1 AND holder = $2", l.name, l.me)
	return err
}

func (l skipLockedLocker) close() {}
