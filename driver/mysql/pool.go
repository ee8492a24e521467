package mysql

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// pool is where a client's connections come from.
type pool struct {
	db      *sql.DB
	owned   bool // it is the client's alone
	limiter limiter
	joiner  joiner
	looks   pace         // of what polls read
	calls   pace         // of what is written for names
	checked atomic.Bool  // the schema was seen to be this driver's
	packet  atomic.Int64 // the server's max_allowed_packet; 0: not known yet
	asking  atomic.Int32 // statements that have a connection, or want one
	// why the server did not answer the last statement; nil: it did
	failure atomic.Pointer[error]
}

// answer is what the server says to a statement.
type answer struct {
	sets results
	sent time.Time // before it was sent
}

// ask sends a statement and returns the server's whole answer, if it comes within limit. While ctx
// lives no error matches a context's.
//
// A connection whose statement ended with anything else is closed and never goes back to the pool.
// Whoever kills a procedure, or ends its time, keeps it from ending its transaction and from
// restoring the session's settings. What somebody else did on that connection next would be part of
// that transaction.
func (p *pool) ask(ctx context.Context, limit time.Duration, stmt string) (a answer, err error) {
	p.asking.Add(1)
	defer p.asking.Add(-1)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() {
		var e *mysql.MySQLError
		if p.failure.Store(nil); err != nil && !errors.As(err, &e) {
			p.failure.Store(&err)
		}
	}()
	conn, err := p.db.Conn(within)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = cmp.Or(p.busy(), err)
		}
		return a, &kit.NotSent{Err: plain(ctx, err, limit)}
	}
	defer conn.Close()
	a.sent = time.Now()
	if a.sets, err = query(within, conn, stmt); err == nil {
		return a, nil
	}
	discard(conn)
	if errors.Is(err, sqldriver.ErrBadConn) {
		return a, &kit.NotSent{Err: err}
	}
	return a, plain(ctx, err, limit)
}

// discard closes a connection instead of returning it to its pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
}

// plain says in words what went wrong with a connection, and matches no error of contexts while ctx
// lives. limit is the time that the statement had.
func plain(ctx context.Context, err error, limit time.Duration) error {
	switch {
	case errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("the connection to the server broke: %w", err)
	case err == context.DeadlineExceeded && ctx.Err() == nil: // nothing else is known
		return fmt.Errorf("the server did not answer within %s", limit)
	}
	return kit.Hide(ctx, err)
}

// busy is the reason why there is no connection, if others have them all.
func (p *pool) busy() error {
	s := p.db.Stats()
	if p.owned || s.MaxOpenConnections == 0 || s.InUse < s.MaxOpenConnections ||
		int(p.asking.Load()) > s.MaxOpenConnections {
		return nil
	}
	return fmt.Errorf("all %d connections of the pool are in use: give dlock a pool of its own "+
		"(docs/mysql.md)", s.MaxOpenConnections)
}

// query sends a statement and reads all that the server answers: an error may come last.
func query(ctx context.Context, conn *sql.Conn, stmt string) (results, error) {
	rows, err := conn.QueryContext(ctx, stmt)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var sets results
	for {
		columns, err := rows.Columns()
		if err != nil {
			return nil, err
		}
		raw, at := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
		for i := range raw {
			at[i] = &raw[i]
		}
		var set [][]string
		for rows.Next() {
			if err := rows.Scan(at...); err != nil {
				return nil, err
			}
			row := make([]string, len(raw))
			for i, v := range raw {
				row[i] = string(v)
			}
			set = append(set, row)
		}
		sets = append(sets, set)
		if !rows.NextResultSet() {
			return sets, rows.Err()
		}
	}
}
