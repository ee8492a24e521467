package conn

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Listener has the callbacks of the user of a [Session].
type Listener struct {
	Event func(zk.Event)  // called for every event, in order; must not block
	End   func()          // called when a call finds the session expired; calls [Session.End]
	Stop  <-chan struct{} // when it is closed all calls return driver.ErrClosed
}

// Session is one session on a [Conn]. Its calls are in call.go. ID, Timeout and Lag are set by
// Begin, and before the first event.
type Session struct {
	ID      int64
	Timeout time.Duration // as the server gave it
	Lag     time.Duration // how late a sign of life may reach the leader

	conn     *Conn
	listener Listener
	ended    chan struct{} // closed by End

	mu    sync.Mutex
	over  bool           // End was called
	shut  bool           // no call begins any more
	calls sync.WaitGroup // of the library, under way

	// for Check, which one goroutine calls
	checked time.Time // when it was last called
	awake   time.Time // when this process last resumed after a standstill
}

// NewSession returns a session that has not begun.
func NewSession(l Listener) *Session {
	now := time.Now()
	return &Session{listener: l, ended: make(chan struct{}), checked: now, awake: now}
}

// Begin waits until the connection has a session, and uses that one. It returns [ErrNoServer] when
// ctx ends, and zk.ErrClosing if the connection was closed.
func (s *Session) Begin(ctx context.Context, c *Conn) error {
	const glance = 100 * time.Millisecond
	s.conn = c
	for !c.give(s) {
		c.hangUpSilent(time.Now().Add(-greetTimeout))
		t := time.NewTimer(glance)
		select {
		case <-c.ready:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ErrNoServer
		}
		t.Stop()
		if c.isClosed() {
			return zk.ErrClosing
		}
	}
	return nil
}

// give gives s the session that the connection has, and sends it every event from now on. It
// reports whether there is one.
func (c *Conn) give(s *Session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.up || c.id == 0 {
		return false
	}
	s.ID, s.Timeout, s.Lag = c.id, c.timeout, c.lag
	c.listen = s.listener.Event
	return true
}

// State returns what the connection knows now. If its ID is another one this session has ended.
func (s *Session) State() State { return s.conn.State() }

// KnownAlive is [Conn.KnownAlive].
func (s *Session) KnownAlive(t time.Time) time.Time { return s.conn.KnownAlive(t) }

// Library is [Conn.Library].
func (s *Session) Library() *zk.Conn { return s.conn.library }

// End marks the session as ended: its calls return [ErrEnded] from now on. It reports whether this
// is the first call.
func (s *Session) End() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.over = true
	close(s.ended)
	return true
}

// Over reports whether End was called.
func (s *Session) Over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// Ended returns a channel that End closes.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Check has to be called once in each period. It reports whether the session may still live: the
// connection has it, and a packet came from the server within its timeout. It hangs up on a server
// that answers nothing, so that the library moves to another one with the session.
func (s *Session) Check(now time.Time, period time.Duration) (lives bool) {
	st := s.conn.State()
	if st.ID != s.ID || now.Sub(st.Heard) >= s.Timeout {
		return false
	}
	quarter := max(s.Timeout/4, 50*time.Millisecond)
	if now.Sub(s.checked) > period+quarter/4 {
		s.awake = now // this process stood still: there may be an answer that it has not read
	}
	s.checked = now
	if since := now.Add(-min(quarter, answerTimeout)); s.awake.Before(since) && s.conn.stalled(since) {
		s.conn.hangUp(since)
	}
	s.conn.hangUpSilent(now.Add(-min(quarter, greetTimeout)))
	return true
}

// Close ends the session at the server, if one can be reached, and the connection. It returns
// within a little more than four seconds.
func (s *Session) Close() {
	if s.finish() {
		s.conn.Close()
		return
	}
	s.conn.end() // which ends the calls
	go func() {
		s.calls.Wait()
		s.conn.library.Close()
	}()
}

// Detach ends the driver's use of a session that goes on. It stops the events and waits for the
// calls under way. After two seconds it hangs up, which ends them.
func (s *Session) Detach() {
	s.conn.mu.Lock()
	s.conn.listen = nil
	s.conn.mu.Unlock()
	if !s.finish() {
		s.conn.hangUp(time.Now().Add(time.Hour))
	}
}

// finish lets no further call begin, and waits for those under way: a call that the library's Close
// overtakes reads its answer while that is written. It reports whether they have ended.
func (s *Session) finish() bool {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	return kit.Within(closeTimeout, s.calls.Wait)
}
