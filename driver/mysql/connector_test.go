package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// slowServer opens connections, each after a time.
type slowServer struct {
	start time.Duration

	mu                      sync.Mutex
	opening, most           int // connections being opened, now and at most
	made, canceled, current int
}

func (s *slowServer) Connect(ctx context.Context) (sqldriver.Conn, error) {
	s.count(func() {
		s.opening++
		s.most = max(s.most, s.opening)
	})
	defer s.count(func() { s.opening-- })
	select {
	case <-ctx.Done():
		s.count(func() { s.canceled++ })
		return nil, ctx.Err()
	case <-time.After(s.start):
	}
	s.count(func() {
		s.made++
		s.current++
	})
	return &slowConn{server: s}, nil
}

func (s *slowServer) Driver() sqldriver.Driver { return nil }

// count reads or changes the counters.
func (s *slowServer) count(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// slowConn is a connection on which nothing is sent.
type slowConn struct {
	sqldriver.Conn
	server *slowServer
}

func (c *slowConn) Close() error {
	c.server.count(func() { c.server.current-- })
	return nil
}

// pool returns a pool of connections to the server.
func (s *slowServer) pool() *sql.DB {
	c := newConnector(&kit.Openings{Late: 3 * time.Second}, 3*time.Second)
	c.names = [2]sqldriver.Connector{s, s}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(32)
	db.SetMaxIdleConns(32)
	return db
}

// TestConnectionsToASlowServer: connections take longer than a call waits for one. Calls that come
// again get them all the same, the server is not given one for each call, and none is lost.
func TestConnectionsToASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowServer{start: 8 * time.Second}
		db := s.pool()
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for until := time.Now().Add(time.Minute); time.Now().Before(until); {
					ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
					conn, err := db.Conn(ctx)
					cancel()
					if err == nil {
						time.Sleep(100 * time.Millisecond)
						conn.Close()
						return
					}
				}
				t.Error("a call got no connection in a minute")
			})
		}
		all.Wait()
		db.Close()
		synctest.Wait()
		s.count(func() {
			if s.most > 1+maxLeft {
				t.Errorf("%d connections were opened at once", s.most)
			}
			if s.opening != 0 || s.current != 0 {
				t.Errorf("after Close %d connections are being opened, and %d are left", s.opening, s.current)
			}
		})
	})
}

// TestAConnectionThatIsLeft: no call may want it any more, and the pool may end first.
func TestAConnectionThatIsLeft(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowServer{start: 8 * time.Second}
			db := s.pool()
			ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
			defer cancel()
			if _, err := db.Conn(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call got %v", err)
			}
			if closes {
				db.Close()
				synctest.Wait()
				s.count(func() {
					if s.opening != 0 || s.canceled != 1 {
						t.Error("Close left an attempt")
					}
				})
				return
			}
			time.Sleep(s.start + leftTime)
			synctest.Wait()
			s.count(func() {
				if s.made != 1 || s.current != 0 {
					t.Errorf("%d connections were made, and %d are left", s.made, s.current)
				}
			})
			db.Close()
		})
	}
}

// TestManyConnectionsAtOnce: a server that is not slow soon gets as many as are wanted.
func TestManyConnectionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowServer{start: 10 * time.Millisecond}
		db := s.pool()
		defer db.Close()
		begun := time.Now()
		var all sync.WaitGroup
		for range 31 {
			all.Go(func() {
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Second)
				conn.Close()
			})
		}
		all.Wait()
		// 1, 2, 4, 8 and 16 at a time
		if took := time.Since(begun) - time.Second; took > 5*s.start {
			t.Errorf("31 connections took %s", took)
		}
	})
}
