package conformance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// try runs the law in virtual time on a toy with that fault, and returns what it said.
func try(t *testing.T, l Law, f fault) (r *recorder) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r = &recorder{name: l.Name}
		r.ctx, r.cancel = context.WithCancel(context.Background())
		s := newToy(f)
		r.record(l, s.harness())
		close(s.end)
		pause(time.Minute) // what is under way ends
	})
	return r
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
		Open: func(T) driver.Backend { return s.open() },
		OpenPrefixed: func(_ T, prefix string) driver.Backend {
			c := s.open()
			if c.prefix = prefix; s.is(noPrefix) {
				c.prefix = ""
			}
			return c
		},
		Partition:   func(_ T, b driver.Backend) func() { return of(b).breakConnection(&of(b).partitioned) },
		HoldReplies: func(_ T, b driver.Backend) func() { return of(b).breakConnection(&of(b).held) },
		DelayReplies: func(_ T, b driver.Backend, d time.Duration) {
			c := of(b)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.delay = d
		},
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
	switch {
	case c.s.is(connectionPerWaiter):
		return 1 + len(c.waits)
	case c.s.is(connectionPerDozen):
		return 1 + len(c.holds)/12
	}
	return 1
}
