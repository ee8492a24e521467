package conn

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// begun returns a session of an owned connection without a library.
func begun(stop <-chan struct{}) *Session {
	s := NewSession(Listener{Stop: stop})
	s.listener.End = func() { s.End() }
	s.conn = newConn(Config{Owned: true})
	return s
}

// TestCallEnds: a call returns when its context, its session or its client ends, and a later result
// of the library is not lost.
func TestCallEnds(t *testing.T) {
	for what, test := range map[string]struct {
		end  func(s *Session, cancel context.CancelFunc, stop chan struct{})
		want error
	}{
		"the context": {func(_ *Session, cancel context.CancelFunc, _ chan struct{}) { cancel() }, context.Canceled},
		"the session": {func(s *Session, _ context.CancelFunc, _ chan struct{}) { s.End() }, ErrEnded},
		"the client":  {func(_ *Session, _ context.CancelFunc, stop chan struct{}) { close(stop) }, driver.ErrClosed},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stop := make(chan struct{})
			s := begun(stop)
			time.AfterFunc(time.Second, func() { test.end(s, cancel, stop) })
			var late int
			v, err := call(ctx, s, func(*zk.Conn) (int, error) { time.Sleep(time.Minute); return 7, nil }, func(v int, err error) { late = v })
			if v != 0 || !errors.Is(err, test.want) || kit.WasNotSent(err) {
				t.Errorf("%s ended: %d, %v; want %v", what, v, err, test.want)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if late != 7 {
				t.Errorf("%s ended, and the later result is %d", what, late)
			}
		})
	}
}

// TestCallNotSent: no call begins after the end of the context, the session or the use of the
// connection, and the error says so.
func TestCallNotSent(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	ended, finished := begun(nil), begun(nil)
	ended.End()
	finished.finish()
	for what, c := range map[string]struct {
		ctx context.Context
		s   *Session
	}{"context": {over, begun(nil)}, "session": {t.Context(), ended}, "use": {t.Context(), finished}} {
		err := c.s.simple(c.ctx, func(*zk.Conn) error { t.Errorf("%s: it was called", what); return nil }, nil)
		if !kit.WasNotSent(err) || !Refused(err) || Disconnected(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestExpiredSessionEnds: a call that finds the session expired ends it.
func TestExpiredSessionEnds(t *testing.T) {
	s := begun(nil)
	if err := s.simple(t.Context(), func(*zk.Conn) error { return zk.ErrSessionExpired }, nil); !errors.Is(err, ErrEnded) || !s.Over() {
		t.Errorf("%v; the session has ended: %t", err, s.Over())
	}
	if s.End() {
		t.Error("a session ends twice")
	}
}

// TestErrors: what an error says about its call.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err                   error
		refused, disconnected bool
	}{
		{nil, false, false},
		{zk.ErrNoNode, true, false},
		{errors.New("unknown error: -127"), true, false},
		{zk.ErrConnectionClosed, false, true},
		{zk.ErrNoServer, false, true},
		{ErrEnded, false, false},
		{context.DeadlineExceeded, false, false},
		{driver.ErrUnsupported, false, false},
	} {
		if Refused(c.err) != c.refused || Disconnected(c.err) != c.disconnected {
			t.Errorf("%v: refused %t, disconnected %t", c.err, Refused(c.err), Disconnected(c.err))
		}
	}
}
