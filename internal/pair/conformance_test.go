package pair_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/internal/pair"
)

// side returns a client of the space.
func side(t conformance.T, space *memory.Space, prefix, identity string) pair.Side {
	b, err := memory.New(memory.Options{Space: space, Prefix: prefix})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return pair.Side{Backend: b, Caps: b.Capabilities(), Identity: identity}
}

// kind is a kind of pair.
type kind struct {
	name   string
	change func(pair.Side) pair.Side // of the second space
	oneWay bool                      // all clients name the same space as the old one
}

var kinds = []kind{
	{"two queues", func(s pair.Side) pair.Side { return s }, false},
	{"a side without a queue", queueless, true},
	{"a side without a queue that can be shared", sharedQueueless, true},
	{"fixed leases of one side end with its client", mortal, true},
	{"the new side cannot be raised", func(s pair.Side) pair.Side {
		s.Caps.Raises = false
		s.Backend = fixedTokens{s.Backend.(*memory.Backend)}
		return s
	}, true},
}

// fixedTokens is a backend whose tokens cannot be raised.
type fixedTokens struct{ plain }

// plain is what every backend in memory has but Raise.
type plain interface {
	driver.Backend
	driver.Capable
	driver.Breaker
	driver.Notifier
	driver.Lister
}

// queueless makes a side that can neither queue nor share, as a lock of other software.
func queueless(s pair.Side) pair.Side {
	s.Caps.Queue, s.Caps.Fencing, s.Caps.Shared, s.Caps.Semaphores, s.Caps.Joins = false, false, false, false, false
	s.Caps.Raises = false
	s.Caps.Format = "other"
	s.Backend = noQueue{s.Backend.(*memory.Backend), s.Caps}
	return s
}

// sharedQueueless makes a side that cannot queue, and has joins and readers without tokens.
func sharedQueueless(s pair.Side) pair.Side {
	space := s.Backend.(*memory.Backend)
	s = queueless(s)
	s.Caps.Shared, s.Caps.Joins = true, true
	s.Backend = noTokens{noQueue{space, s.Caps}}
	return s
}

// noTokens breaks all that holds, as there are no tokens to choose a hold by.
type noTokens struct{ noQueue }

func (b noTokens) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	q, err := b.plain.Inspect(ctx, name)
	if err != nil {
		return err
	}
	broken := driver.ErrNotHeld
	for _, e := range q.Holders() {
		if err := b.plain.Break(ctx, name, e.Token, force); t == 0 && err == nil {
			broken = nil
		}
	}
	return broken
}

type noQueue struct {
	plain
	caps driver.Capabilities
}

func (b noQueue) Capabilities() driver.Capabilities { return b.caps }

func (b noQueue) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	switch {
	case r.Mode == driver.Shared && !b.caps.Shared, r.Semaphore(), r.Join() && !r.Fixed && !b.caps.Joins:
		return driver.Grant{}, driver.ErrUnsupported
	}
	wait := r.Wait
	r.Wait = false
	g, err := b.plain.Acquire(ctx, r)
	if wait && errors.Is(err, driver.ErrHeld) {
		err = &driver.RetryError{After: 10 * time.Millisecond}
	}
	g.Token = 0
	return g, err
}

func (b noQueue) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	q, err := b.plain.Inspect(ctx, name)
	for _, e := range q.Holders() {
		e.Token = 0
	}
	return q, err
}

// mortal makes a side whose fixed leases end with its client, as those of a session.
func mortal(s pair.Side) pair.Side {
	s.Caps.FixedOutlives = false
	s.Backend = &mortalFixed{plain: s.Backend.(*memory.Backend), caps: s.Caps, fixed: map[driver.ID]driver.Request{}}
	return s
}

type mortalFixed struct {
	plain
	caps driver.Capabilities

	mu    sync.Mutex
	fixed map[driver.ID]driver.Request
}

func (b *mortalFixed) Capabilities() driver.Capabilities { return b.caps }

func (b *mortalFixed) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.plain.Acquire(ctx, r)
	if err == nil && r.Fixed {
		b.mu.Lock()
		b.fixed[r.ID] = r
		b.mu.Unlock()
	}
	return g, err
}

func (b *mortalFixed) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, r := range b.fixed {
		b.plain.Release(context.Background(), r)
		delete(b.fixed, id)
	}
	return b.plain.Close()
}

// harness is that of a pair of two spaces in memory. Every second client names them in the opposite
// order, as on the way back.
func harness(k kind) conformance.Harness {
	one, two := new(memory.Space), new(memory.Space)
	clients := new(atomic.Int32)
	open := func(t conformance.T, prefix string) driver.Backend {
		a, b := k.change(side(t, two, prefix, "b")), side(t, one, prefix, "a")
		if clients.Add(1)%2 == 0 && !k.oneWay {
			a, b = b, a
		}
		p, err := pair.New(a, b)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return p
	}
	return conformance.Harness{
		Open:         func(t conformance.T) driver.Backend { return open(t, "") },
		OpenPrefixed: open,
		// between a client and its space there is no network, and a space is never restarted; nor
		// does a pair tell what its spaces store
		Without: []string{"HoldReplies", "DelayReplies", "Restart", "StepClock", "Stored"},
	}
}

// TestConformanceInVirtualTime runs the suite on pairs.
func TestConformanceInVirtualTime(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			for _, l := range conformance.Laws() {
				t.Run(l.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { l.Run(t, harness(k)) })
				})
			}
		})
	}
}
