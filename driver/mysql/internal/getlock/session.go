package getlock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	mysql "github.com/go-sql-driver/mysql"
)

// session is a connection of its own, for a lock that it has or waits for.
type session struct {
	conn    *sql.Conn
	id      int64         // of the connection, to the server
	timeout int64         // wait_timeout, in seconds
	turn    chan struct{} // has room for one: the right to send a statement

	ctx   context.Context // ends when the session is closed
	close func()
}

// errClosed is the error of a statement on a session that is closed.
var errClosed = errors.New("the connection is closed")

// openSession opens a session.
func openSession(ctx context.Context, db *sql.DB) (*session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, turn: make(chan struct{}, 1)}
	var end context.CancelFunc
	s.ctx, end = context.WithCancel(context.Background())
	s.close = sync.OnceFunc(func() {
		end()
		go func() { // it may wait for the statement under way
			_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // not back to the pool
			_ = conn.Close()
		}()
	})
	ids, err := s.query(ctx, "SELECT CONNECTION_ID()", 1)
	if err != nil {
		s.close()
		return nil, err
	}
	s.id = ids[0].Int64
	return s, nil
}

// query sends a statement whose result is a row of numbers, or that has no result if columns is 0.
// The statement goes on when ctx ends. After an error the session is closed, since its state is
// not known, unless the statement was only interrupted.
func (s *session) query(ctx context.Context, statement string, columns int) ([]sql.NullInt64, error) {
	type answer struct {
		row []sql.NullInt64
		err error
	}
	select {
	case s.turn <- struct{}{}:
	case <-s.ctx.Done():
		return nil, errClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	done := make(chan answer, 1)
	go func() {
		row := make([]sql.NullInt64, columns)
		to := make([]any, columns)
		for i := range row {
			to[i] = &row[i]
		}
		var err error
		if columns == 0 {
			_, err = s.conn.ExecContext(s.ctx, statement)
		} else {
			err = s.conn.QueryRowContext(s.ctx, statement).Scan(to...)
		}
		if err != nil && !interrupted(err) {
			err = fmt.Errorf("%w: %w", errClosed, err)
			s.close()
		}
		<-s.turn
		done <- answer{row, err}
	}()
	select {
	case a := <-done:
		return a.row, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// interrupted reports whether a statement was ended by KILL QUERY or a limit on its time, so that
// the session is as it was. After other errors it may not be: a server reports the end of a session
// by wait_timeout, and others, as an answer to the next statement.
func interrupted(err error) bool {
	e := (*mysql.MySQLError)(nil)
	return errors.As(err, &e) && (e.Number == 1317 || e.Number == 3024 || e.Number == 1969)
}

// expireAfter makes the server end the session if it sends nothing for longer than that.
func (s *session) expireAfter(ctx context.Context, ttl time.Duration) error {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	seconds++ // the server's seconds are not exact
	if s.timeout >= seconds && s.timeout <= 2*seconds {
		return nil
	}
	if _, err := s.query(ctx, fmt.Sprintf("SET SESSION wait_timeout = %d", seconds), 0); err != nil {
		return err
	}
	s.timeout = seconds
	return nil
}

// literal is a string as it stands in a statement, whatever characters it has.
func literal(s string) string { return "_utf8mb4 X'" + hex.EncodeToString([]byte(s)) + "'" }
