package advisory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dlock-go/dlock/driver"
)

var (
	// errClosed is the error of a statement on a session that is closed.
	errClosed = errors.New("the connection is closed")
	// ErrPooled is the error of a connection through a pooler.
	ErrPooled error = unsupported("a pooler is between here and the server: an advisory lock belongs to a session of the server, " +
		"which a pooler may give to another client. Use the server's own address for format=advisory")
	// ErrStandby is the error of a connection to a standby.
	ErrStandby error = errors.New("the server is a standby, whose advisory locks are others than those of the primary: " +
		"use the address of the primary, or name all servers in the URL")
	// ErrOld is the error of a server without idle_session_timeout.
	ErrOld error = unsupported("the server is older than PostgreSQL 14, or another one that speaks its protocol: it does not end idle sessions, " +
		"so the locks of a client that is cut off would never be free")
)

// unsupported is an error that matches [driver.ErrUnsupported].
type unsupported string

// Error returns the text.
func (u unsupported) Error() string { return string(u) }

// Is matches [driver.ErrUnsupported].
func (unsupported) Is(target error) bool { return target == driver.ErrUnsupported }

// session is a connection of its own, for a lock that it has or waits for.
type session struct {
	pid  uint32 // of the process that serves it
	jobs chan job

	ctx   context.Context // ends when the session is closed
	close context.CancelFunc
}

// job is a statement, or several in one message, which are one transaction.
type job struct {
	statement string
	done      chan<- answer // has room for the answer
}

// answer is the first row that the last statement of a job returned, or its error.
type answer struct {
	row []field
	err error
}

// field is a value as text; empty: it may be null.
type field string

// number returns a whole number; 0: it is none.
func (f field) number() int64 {
	n, _ := strconv.ParseInt(string(f), 10, 64)
	return n
}

// is reports whether a boolean is true.
func (f field) is() bool { return f == "t" }

// setUp makes a session such that no setting of the user, the database or the server ends its
// statements. lock_timeout, which bounds waits, is less than deadlock_timeout: see the package.
const setUp = `SELECT set_config(name, CASE name
		WHEN 'lock_timeout' THEN
			(SELECT least(2000, greatest(100, setting::int8 * 4 / 5))::text
				FROM pg_settings WHERE name = 'deadlock_timeout')
		WHEN 'idle_session_timeout' THEN '10000'
		WHEN 'client_encoding' THEN 'UTF8'
		ELSE '0' END, false)
	FROM pg_settings WHERE name IN ('lock_timeout', 'idle_session_timeout', 'client_encoding',
		'statement_timeout', 'transaction_timeout');
SELECT pg_backend_pid(), current_setting('server_version_num'), pg_is_in_recovery()`

// openSession opens a session.
func openSession(ctx context.Context, connect func(context.Context) (*pgx.Conn, error)) (*session, error) {
	within, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := connect(within)
	if err != nil {
		return nil, err
	}
	s := &session{pid: conn.PgConn().PID(), jobs: make(chan job)}
	s.ctx, s.close = context.WithCancel(context.Background())
	go s.serve(conn)
	row, err := s.query(ctx, setUp, 3)
	switch {
	case err != nil:
	case uint32(row[0].number()) != s.pid:
		err = ErrPooled
	case row[1].number() < 140000:
		err = ErrOld
	case row[2].is():
		err = ErrStandby
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// query sends a statement whose answer is a row with at least that many columns. The statement goes
// on when ctx ends. After an error the session is closed, since its state is not known, unless the
// statement was only canceled.
func (s *session) query(ctx context.Context, statement string, columns int) ([]field, error) {
	done := make(chan answer, 1)
	late := time.NewTimer(answerTime)
	defer late.Stop()
	jobs := s.jobs
	for {
		select {
		case jobs <- job{statement, done}:
			jobs = nil
		case a := <-done:
			if a.err == nil && len(a.row) < columns {
				s.close()
				return nil, fmt.Errorf("%w: the server answered with %d columns, not %d", errClosed, len(a.row), columns)
			}
			return a.row, a.err
		case <-s.ctx.Done():
			select {
			case a := <-done: // it says why
				return a.row, a.err
			default:
				return nil, errClosed
			}
		case <-late.C:
			return nil, fmt.Errorf("the server did not answer within %s", answerTime)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// serve sends what is asked for, one after the other, until the session is closed.
func (s *session) serve(conn *pgx.Conn) {
	defer func() {
		s.close()
		ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	for {
		j, is := s.next(conn)
		if !is {
			return
		}
		row, err := send(s.ctx, conn, j.statement)
		if err != nil && !canceled(err) {
			err = fmt.Errorf("%w: %w", errClosed, err)
			j.done <- answer{nil, err}
			return
		}
		j.done <- answer{row, err}
	}
}

// next returns the next job; false: the session has ended. Until there is one it reads, and so
// learns at once when the server ends the session.
func (s *session) next(conn *pgx.Conn) (j job, is bool) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	came := make(chan bool, 1)
	go func() {
		defer cancel()
		select {
		case j = <-s.jobs:
			came <- true
		case <-ctx.Done():
			came <- false
		}
	}()
	for ctx.Err() == nil && !conn.IsClosed() {
		_ = conn.PgConn().WaitForNotification(ctx) // there are none
	}
	cancel()
	switch is := <-came; {
	case is && conn.IsClosed():
		j.done <- answer{nil, errClosed}
		return j, false
	case !is || s.ctx.Err() != nil:
		return j, false
	}
	return j, true
}

// send sends statements without parameters, and returns the first row of the last one's result.
func send(ctx context.Context, conn *pgx.Conn, statement string) ([]field, error) {
	results, err := conn.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil {
		return nil, err
	}
	var row []field
	if n := len(results); n > 0 && len(results[n-1].Rows) > 0 {
		for _, value := range results[n-1].Rows[0] {
			row = append(row, field(value))
		}
	}
	return row, nil
}

// canceled reports whether a statement was ended by pg_cancel_backend, so that the session is as it
// was. After other errors it may not be.
func canceled(err error) bool {
	e := (*pgconn.PgError)(nil)
	return errors.As(err, &e) && e.Code == "57014"
}
