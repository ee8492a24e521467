package conformance

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// recorder is a T that records what a law says.
type recorder struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc

	mu              sync.Mutex
	failed, skipped bool
	// by Fatalf or Skipf; package testing panics if a test ends in another way without returning
	ended    bool
	log      []string
	cleanups []func()
}

func (r *recorder) Helper()                  {}
func (r *recorder) Name() string             { return r.name }
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) note(failed, skipped bool, format string, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.skipped = r.failed || failed, r.skipped || skipped
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Logf(format string, args ...any)   { r.note(false, false, format, args) }
func (r *recorder) Errorf(format string, args ...any) { r.note(true, false, format, args) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.note(true, false, format, args)
	r.end()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.note(false, true, format, args)
	r.end()
}

func (r *recorder) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) String() string { return strings.Join(r.log, "\n") }

// try runs the law in virtual time on a toy with that fault, and returns what it said.
func try(t *testing.T, l Law, f fault) (r *recorder) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r = &recorder{name: l.Name}
		r.ctx, r.cancel = context.WithCancel(context.Background())
		s := newToy(f)
		alone(func() { l.Run(r, s.harness()) })
		r.cancel()
		for len(r.cleanups) > 0 {
			last := r.cleanups[len(r.cleanups)-1]
			r.cleanups = r.cleanups[:len(r.cleanups)-1]
			alone(last)
		}
		close(s.end)
		pause(time.Minute) // what is under way ends
	})
	return r
}

// alone runs f in a goroutine that it may end.
func alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// harness gives the toy all powers.
func (s *toy) harness() Harness {
	of := func(b driver.Backend) *toyClient { return b.(*toyClient) }
	if s.is(powerless) {
		return Harness{Open: func(T) driver.Backend { return s.open() }}
	}
	if s.is(poor) {
		return Harness{Open: func(T) driver.Backend { return struct{ driver.Backend }{s.open()} }}
	}
	return Harness{
		Open:        func(T) driver.Backend { return s.open() },
		Partition:   func(_ T, b driver.Backend) func() { return of(b).breakConnection(&of(b).partitioned) },
		HoldReplies: func(_ T, b driver.Backend) func() { return of(b).breakConnection(&of(b).held) },
		Calls:       func(b driver.Backend) int64 { return of(b).calls.Load() },
		Connections: func(b driver.Backend) int { return of(b).connections() },
		Record: func(_ T, b driver.Backend) func() {
			c := of(b)
			c.mu.Lock()
			from := len(c.sent)
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				copies := c.sent[from:]
				from = len(c.sent)
				c.mu.Unlock()
				for _, r := range copies {
					c.send(context.Background(), s.end, func() { s.enter(c, r, false) })
				}
			}
		},
		Restart: func(T) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch s.fault {
			case forgetsHolds:
				s.forget()
			case forgetsTokens:
				s.last = map[string]driver.Token{}
			}
		},
		Stored: func(_ T, _ driver.Backend, name string) int {
			s.mu.Lock()
			defer s.mu.Unlock()
			if q := s.queues[s.key(name)]; q != nil {
				return q.Len()
			}
			return 0
		},
		StepClock: func(_ T, d time.Duration) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.step += d
		},
	}
}

func (c *toyClient) connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.s.is(connectionPerWaiter) {
		return 1 + len(c.waits)
	}
	return 1
}
