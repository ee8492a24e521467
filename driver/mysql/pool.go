package mysql

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

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// pool is where a client's connections come from.
type pool struct {
	db       *sql.DB
	owned    bool          // it belongs to the client
	openings *kit.Openings // of an owned pool
	limiter  kit.Limiter
	sessions sessions
	checked  atomic.Bool  // the tables were found to be this driver's
	packet   atomic.Int64 // the server's max_allowed_packet; 0: not known yet
	asking   atomic.Int32 // statements that have a connection, or want one
	careful  atomic.Int64 // until when statements are not to wait long for rows (ns)
	// why the server did not answer the last statement; nil: it did
	failure atomic.Pointer[error]
}

// carefulTime is the time for which statements do not wait long for rows, after one was not
// answered.
const carefulTime = time.Minute

// answer is the server's answer to a statement.
type answer struct {
	rows     [][]string // of a SELECT, as text; NULL is empty
	affected int64      // rows of any other statement
	id       int64      // and its insert id
	sent     time.Time  // before it was sent
}

// single returns the one row of an answer.
func (a answer) single(columns int) ([]string, error) {
	if len(a.rows) != 1 || len(a.rows[0]) != columns {
		return nil, fmt.Errorf("unexpected answer %q", a.rows)
	}
	return a.rows[0], nil
}

// ask sends a statement and returns the server's answer, if it comes within limit. many says that
// it locks rows of several locks. Until ctx ends, no error matches a context's. A connection whose
// statement failed never returns to the pool.
func (p *pool) ask(ctx context.Context, limit time.Duration, stmt string, many bool) (a answer, err error) {
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
	var s session
	if !p.owned { // its DSN sets them
		s, err = p.sessions.of(within, conn)
	}
	if many || time.Now().UnixNano() < p.careful.Load() {
		s = s.short()
	}
	if err == nil {
		err = s.enter(within, conn)
	}
	if err != nil {
		discard(conn)
		return a, &kit.NotSent{Err: plain(ctx, err, limit)}
	}
	a.sent = time.Now()
	if err = a.fill(within, conn, stmt); err == nil {
		if s.leave(within, conn) != nil {
			discard(conn)
		}
		return a, nil
	}
	discard(conn)
	if errors.Is(err, sqldriver.ErrBadConn) {
		return a, &kit.NotSent{Err: err}
	}
	if within.Err() != nil {
		p.careful.Store(time.Now().Add(carefulTime).UnixNano())
		if p.openings != nil {
			p.openings.Slow()
		}
	}
	return a, plain(ctx, err, limit)
}

// fill sends a statement and reads the answer.
func (a *answer) fill(ctx context.Context, conn *sql.Conn, stmt string) (err error) {
	if !strings.HasPrefix(strings.TrimLeft(stmt, "("), "S") { // not a SELECT or SHOW
		res, err := conn.ExecContext(ctx, stmt)
		if err != nil {
			return err
		}
		a.affected, err = res.RowsAffected()
		if err == nil {
			a.id, err = res.LastInsertId()
		}
		return err
	}
	a.rows, err = query(ctx, conn, stmt)
	return err
}

// query sends a statement that reads, and returns its rows as text.
func query(ctx context.Context, conn *sql.Conn, stmt string) (set [][]string, err error) {
	rows, err := conn.QueryContext(ctx, stmt)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	raw, at := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
	for i := range raw {
		at[i] = &raw[i]
	}
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
	return set, rows.Err()
}

// maxCalls is how many calls for names a client has at the server at once, at most.
const maxCalls = 30

// enter blocks until there is room for a call over connections of the pool.
func (p *pool) enter(urgent bool) {
	most := maxCalls
	if n := p.db.Stats().MaxOpenConnections; n > 0 {
		spare := 2
		if n >= wakeupPool {
			spare += 2 // for wake-up locks
		}
		most = max(1, min(most, n-spare))
	}
	p.limiter.Enter(most, urgent)
}

// discard closes a connection instead of returning it to its pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
}

// plain returns the error of a connection in plain words. Until ctx ends, it matches no error of
// contexts. limit is the time that the statement had.
func plain(ctx context.Context, err error, limit time.Duration) error {
	switch {
	case errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("the connection to the server broke: %w", err)
	case err == context.DeadlineExceeded && ctx.Err() == nil: // nothing else is known
		return fmt.Errorf("the server did not answer within %s", limit)
	}
	return kit.Hide(ctx, err)
}

// busy returns an error that says so if other users of the pool have all of its connections.
func (p *pool) busy() error {
	s := p.db.Stats()
	if p.owned || s.MaxOpenConnections == 0 || s.InUse < s.MaxOpenConnections ||
		int(p.asking.Load()) > s.MaxOpenConnections {
		return nil
	}
	return fmt.Errorf("all %d connections of the pool are in use: give dlock a pool of its own "+
		"(docs/mysql.md)", s.MaxOpenConnections)
}
