package postgres

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// pool is where a client's connections come from.
type pool struct {
	source
	owned    bool          // it belongs to the client
	openings *kit.Openings // of an owned pool
	checked  atomic.Bool   // the server and its tables were found to be fit
	names    atomic.Pointer[tableNames]
	// a pooler is in between, which may use another session for each transaction: there is neither
	// LISTEN nor a prepared statement
	pooled   atomic.Bool
	visiting kit.Limiter
	asking   atomic.Int32 // exchanges that have a connection, or want one
	// why the server did not answer the last exchange; nil: it did
	failure atomic.Pointer[error]
}

// source is a pool of connections, of one of two libraries.
type source interface {
	// with calls f with a connection. reached reports whether f was called. A connection that is
	// closed, or in a transaction, does not return to the pool.
	with(ctx context.Context, f func(*pgx.Conn) error) (reached bool, err error)
	// usage returns how many connections there may be (0: any number) and how many are in use.
	usage() (most, inUse int)
	close()
}

// pgxSource is a pool of pgx.
type pgxSource struct{ *pgxpool.Pool }

func (s pgxSource) with(ctx context.Context, f func(*pgx.Conn) error) (bool, error) {
	conn, err := s.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	return true, f(conn.Conn())
}

func (s pgxSource) usage() (most, inUse int) {
	stat := s.Stat()
	return int(stat.MaxConns()), int(stat.AcquiredConns())
}

func (s pgxSource) close() { s.Pool.Close() }

// sqlSource is a pool of database/sql.
type sqlSource struct{ *sql.DB }

func (s sqlSource) with(ctx context.Context, f func(*pgx.Conn) error) (reached bool, err error) {
	conn, err := s.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	raw := conn.Raw(func(c any) error {
		std, is := c.(*stdlib.Conn)
		if !is {
			err = errOtherDriver
			return nil
		}
		reached = true
		err = f(std.Conn())
		if std.Conn().IsClosed() || std.Conn().PgConn().TxStatus() != 'I' {
			return sqldriver.ErrBadConn
		}
		return nil
	})
	if err == nil && !reached {
		err = raw
	}
	return reached, err
}

func (s sqlSource) usage() (most, inUse int) {
	stat := s.Stats()
	return stat.MaxOpenConnections, stat.InUse
}

func (s sqlSource) close() { s.DB.Close() }

// op is one statement of an exchange, and what it returned.
type op struct {
	sql      string
	args     []any
	each     func(pgx.Rows) error // called for each row; nil: the statement returns none
	affected int64
	named    string // sql with the schemas of the tables; empty: there are no tables in it
}

// text is what is sent.
func (o *op) text() string { return cmp.Or(o.named, o.sql) }

// exchange sends statements in one message, and reads their answers, within limit. Several
// statements are one transaction: READ COMMITTED and for writing, whatever the session's defaults
// are. sent is a time before they were sent. Until ctx ends, no error matches a context's.
func (p *pool) exchange(ctx context.Context, limit time.Duration, ops ...*op) (sent time.Time, err error) {
	p.asking.Add(1)
	defer p.asking.Add(-1)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() {
		if p.failure.Store(nil); err != nil && serverError(err) == nil {
			p.failure.Store(&err)
		}
	}()
	reached, err := p.with(within, func(conn *pgx.Conn) error {
		sent = time.Now()
		err := send(within, conn, ops)
		if e := serverError(err); e != nil && kindOf(err, true) == later && e.Code != "57014" {
			conn.Close(within) // another one may lead to a server that accepts it
		}
		return err
	})
	switch {
	case err == nil:
		return sent, nil
	case !errors.Is(err, context.DeadlineExceeded):
	case !reached:
		err = cmp.Or(p.busy(), err)
	case p.openings != nil:
		p.openings.Slow()
	}
	err = plain(ctx, err, limit)
	if !reached || pgconn.SafeToRetry(err) {
		err = &kit.NotSent{Err: err}
	}
	return sent, err
}

// send sends statements, and reads their answers.
func send(ctx context.Context, conn *pgx.Conn, ops []*op) error {
	if len(ops) == 1 {
		rows, err := conn.Query(ctx, ops[0].text(), ops[0].args...)
		return ops[0].read(rows, err)
	}
	return transact(ctx, conn, ops)
}

// transact sends statements as one transaction. If one fails, the server ignores those behind it,
// and they are rolled back.
func transact(ctx context.Context, conn *pgx.Conn, ops []*op) (err error) {
	defer func() {
		// a new connection would have to prepare all statements again
		if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == 'E' {
			_, _ = conn.Exec(ctx, "ROLLBACK", pgx.QueryExecModeExec)
		}
	}()
	batch := &pgx.Batch{}
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
	for _, o := range ops {
		batch.Queue(o.text(), o.args...)
	}
	batch.Queue("COMMIT")
	results := conn.SendBatch(ctx, batch)
	defer func() { err = cmp.Or(err, results.Close()) }()
	if _, err := results.Exec(); err != nil {
		return err
	}
	for _, o := range ops {
		rows, err := results.Query()
		if err := o.read(rows, err); err != nil {
			return err
		}
	}
	tag, err := results.Exec()
	if err == nil && tag.String() != "COMMIT" {
		err = fmt.Errorf("the server answered COMMIT with %q", tag)
	}
	return err
}

// read reads the answer to a statement.
func (o *op) read(rows pgx.Rows, err error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if o.each == nil {
			continue
		}
		if err := o.each(rows); err != nil {
			return err
		}
	}
	rows.Close()
	o.affected = rows.CommandTag().RowsAffected()
	return rows.Err()
}

// plain returns the error of a connection in plain words. Until ctx ends, it matches no error of
// contexts. limit is the time that the exchange had.
func plain(ctx context.Context, err error, limit time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return kit.Hide(ctx, fmt.Errorf("the server did not answer within %s: %w", limit, err))
	}
	if strings.Contains(err.Error(), "\n") {
		err = oneLine{err}
	}
	return kit.Hide(ctx, err)
}

// enter blocks until there is room for a visit: others are to leave connections for renewals.
func (p *pool) enter(urgent bool) {
	most := maxVisits
	if n, _ := p.usage(); n > 0 {
		most = max(1, min(most, n/2))
	}
	p.visiting.Enter(most, urgent)
}

// planned is what a transaction begins with that is not sent over a connection that open.go has set
// up.
func (p *pool) planned() []*op {
	if p.owned && !p.pooled.Load() {
		return nil
	}
	return []*op{{sql: plans, each: func(pgx.Rows) error { return nil }}}
}

// busy returns an error that says so if other users of the pool have all of its connections.
func (p *pool) busy() error {
	most, inUse := p.usage()
	if p.owned || most == 0 || inUse < most || int(p.asking.Load()) > most {
		return nil
	}
	return fmt.Errorf("all %d connections of the pool are in use: give dlock a pool of its own (docs/postgres.md)", most)
}
