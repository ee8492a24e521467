package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// startTimes is how long opening a connection may take at most, in units of the time for
	// reaching the server.
	startTimes = 10
	// maxLeft is how many connections a client goes on opening whose calls have ended.
	maxLeft = 2
	// leftTime is how long such a connection is kept for another call.
	leftTime = 2 * time.Second
)

// connector opens the connections of the client's own pool. One that the server is slow to accept
// is not closed when the call ends that wanted it: the next one gets it. Otherwise an overloaded
// server would have to begin anew with each, and would never get one done.
type connector struct {
	// They set their sessions by one of two names of a variable, which MariaDB renamed in 11.1. So
	// a connection costs one statement instead of two.
	names [2]sqldriver.Connector
	older atomic.Int32 // 1: the second name is the server's

	openings  *kit.Openings
	startTime time.Duration
	life      *kit.Life           // of the pool
	lefts     atomic.Int32        // attempts that go on, though their calls have ended
	left      chan sqldriver.Conn // the connections that they open
}

// newConnector returns a connector that has no names yet.
func newConnector(o *kit.Openings, dialTimeout time.Duration) *connector {
	return &connector{openings: o, startTime: startTimes * dialTimeout,
		life: kit.NewLife(), left: make(chan sqldriver.Conn)}
}

// Connect implements [sqldriver.Connector].
func (c *connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	type result struct {
		conn sqldriver.Conn
		err  error
	}
	made := make(chan result)
	wanted, leave := context.WithCancel(ctx)
	defer leave()
	alive := c.life.Go(func() {
		end, err := c.openings.Begin(wanted)
		if err != nil {
			return
		}
		within, cancel := context.WithTimeout(c.life.Context(), c.startTime)
		defer cancel()
		stop := context.AfterFunc(wanted, func() {
			if c.lefts.Add(1) > maxLeft {
				cancel()
			}
		})
		defer func() {
			if !stop() {
				c.lefts.Add(-1)
			}
		}()
		conn, err := c.open(within)
		end(err)
		select {
		case made <- result{conn, err}:
		case <-wanted.Done():
			if err == nil {
				c.keep(conn)
			}
		}
	})
	if !alive {
		return nil, sql.ErrConnDone
	}
	select {
	case r := <-made:
		return r.conn, r.err
	case conn := <-c.left:
		return conn, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keep has another call take a connection, or closes it.
func (c *connector) keep(conn sqldriver.Conn) {
	late := time.NewTimer(leftTime)
	defer late.Stop()
	select {
	case c.left <- conn:
		return
	case <-late.C:
	case <-c.life.Closed():
	}
	_ = conn.Close()
}

// open opens a connection.
func (c *connector) open(ctx context.Context) (sqldriver.Conn, error) {
	which := c.older.Load()
	conn, err := c.names[which].Connect(ctx)
	if e := new(mysql.MySQLError); errors.As(err, &e) && e.Number == 1193 {
		c.older.Store(1 - which)
		return c.names[1-which].Connect(ctx)
	}
	return conn, err
}

// Driver implements [sqldriver.Connector].
func (c *connector) Driver() sqldriver.Driver { return c.names[0].Driver() }

// Close ends the attempts that are under way. The pool calls it when it is closed.
func (c *connector) Close() error {
	c.life.End()
	c.life.Wait()
	return nil
}
