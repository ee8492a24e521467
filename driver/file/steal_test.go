//go:build linux

package file

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// steps let a test stop a backend at the n-th pass of a step from now, and let it go on.
type steps struct {
	mu   sync.Mutex
	step string
	n    int
	hit  chan chan struct{}
}

func (s *steps) at(step string) {
	s.mu.Lock()
	var hit chan chan struct{}
	if s.step == step {
		if s.n--; s.n == 0 {
			hit, s.step = s.hit, ""
		}
	}
	s.mu.Unlock()
	if hit != nil {
		resume := make(chan struct{})
		hit <- resume
		<-resume
	}
}

// stop runs f, which stops at the n-th pass of the step, and returns what lets it go on and waits
// for it.
func (s *steps) stop(step string, n int, f func() error) (resume func() error) {
	s.mu.Lock()
	s.step, s.n, s.hit = step, n, make(chan chan struct{})
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case stopped := <-s.hit:
		return func() error {
			close(stopped)
			return <-done
		}
	case err := <-done: // it never came there
		s.mu.Lock()
		defer s.mu.Unlock()
		s.step = ""
		return func() error { return err }
	}
}

// rig is two clients under a clock that the test moves.
type rig struct {
	a, b   *Backend
	as, bs steps
	now    atomic.Int64
	t      *testing.T
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	r.now.Store(1e9)
	dir, c := t.TempDir(), testConfig()
	c.clock = func() (int64, error) { return r.now.Load(), nil }
	c.at = r.as.at
	r.a = openTestConfig(t, dir, c)
	c.at = r.bs.at
	r.b = openTestConfig(t, dir, c)
	return r
}

func (r *rig) advance(d time.Duration) { r.now.Add(int64(d)) }

// try is b's attempt to get the lock at once.
func (r *rig) try() error {
	q := request("a", long)
	q.Wait = false
	_, err := r.b.Acquire(r.t.Context(), q)
	return err
}

const second = time.Second

// A renewal that is stopped until somebody else is in has lost.
func TestRenewalThatComesLateIsLost(t *testing.T) {
	for _, step := range []string{"arm", "armed"} {
		r := newRig(t)
		q := request("a", 10*second)
		acquire(t, r.a, q)
		resume := r.as.stop(step, 1, func() error { return renew(r.a, q) })
		r.advance(10*second - 1)
		if err := r.try(); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("%s: a moment before the TTL: %v", step, err)
		}
		r.advance(1)
		if err := r.try(); err != nil {
			t.Fatalf("%s: after the TTL: %v", step, err)
		}
		if err := resume(); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: Renew after the takeover: %v", step, err)
		}
		if err := renew(r.a, q); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: Renew again: %v", step, err)
		}
		if n := len(inspect(t, r.b, "a").Holders()); n != 1 {
			t.Errorf("%s: %d holders", step, n)
		}
	}
}

// A renewal read the clock in time, and is stopped before it writes its cell. Then the request
// expires, and somebody takes it, in two updates: mark and drop. Wherever the renewal comes in
// between, exactly one of the two has the lock.
func TestRenewalAndTheftSeeEachOther(t *testing.T) {
	for _, c := range []struct {
		step  string // of the thief, during which the renewal goes on to its end
		n     int
		renew bool // the renewal wins
	}{
		{"new", 1, true},      // the thief saw it expired, and is about to mark it
		{"written", 1, true},  //
		{"swapped", 1, true},  // it is marked
		{"unlinked", 1, true}, //
		{"new", 2, true},      // the thief saw it expired again, and is about to drop it
		{"written", 2, true},
		{"swapped", 2, false}, // it is dropped
		{"unlinked", 2, false},
	} {
		r := newRig(t)
		q := request("a", 10*second)
		acquire(t, r.a, q)
		r.advance(6 * second)
		renewal := r.as.stop("arm", 1, func() error { return renew(r.a, q) })
		r.advance(6 * second) // 12 s: expired by the cell, but not by the renewal's reading
		thief := r.bs.stop(c.step, c.n, r.try)
		renewed := renewal()
		stolen := thief()
		want, wantThief := error(nil), driver.ErrHeld
		if !c.renew {
			want, wantThief = driver.ErrLost, nil
		}
		if !errors.Is(renewed, want) || !errors.Is(stolen, wantThief) {
			t.Errorf("thief at %s %d: Renew: %v, thief: %v; want %v, %v", c.step, c.n, renewed, stolen, want, wantThief)
		}
		if n := inspect(t, r.a, "a").Len(); n != 1 {
			t.Errorf("thief at %s %d: %d requests are left", c.step, c.n, n)
		}
		if c.renew {
			if err := renew(r.a, q); err != nil {
				t.Errorf("thief at %s %d: Renew again: %v", c.step, c.n, err)
			}
		}
	}
}

// What renewals proved before they saw the break holds until the end that it gets, and nothing
// prolongs that.
func TestRenewalAndBreakSeeEachOther(t *testing.T) {
	for _, c := range []struct {
		step    string // of the break, during which the renewal runs
		n       int
		renewed error
		left    time.Duration
	}{
		// the renewal did not see it: its trust is respected
		{"written", 1, nil, 10 * second},
		{"swapped", 1, driver.ErrLost, 4 * second}, // it saw it, and armed nothing
		{"new", 2, driver.ErrLost, 4 * second},
		{"unlinked", 2, driver.ErrLost, 4 * second},
	} {
		r := newRig(t)
		q := request("a", 10*second)
		g := acquire(t, r.a, q)
		r.advance(6 * second)
		resume := r.bs.stop(c.step, c.n, func() error { return r.b.Break(t.Context(), "a", g.Token, false) })
		if err := renew(r.a, q); !errors.Is(err, c.renewed) {
			t.Errorf("break at %s %d: Renew: %v", c.step, c.n, err)
		}
		if err := resume(); err != nil {
			t.Errorf("break at %s %d: %v", c.step, c.n, err)
		}
		if err := renew(r.a, q); !errors.Is(err, driver.ErrLost) {
			t.Errorf("break at %s %d: Renew after it: %v", c.step, c.n, err)
		}
		r.advance(c.left - 1)
		if err := r.try(); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("break at %s %d: a moment before the end: %v", c.step, c.n, err)
		}
		r.advance(1)
		if err := r.try(); err != nil {
			t.Errorf("break at %s %d: after the end: %v", c.step, c.n, err)
		}
	}
}

// A writer that was stopped in an update and comes back after others have been through does no
// harm: also where the slot was vacant before, and is again.
func TestStoppedWriterLosesItsSwap(t *testing.T) {
	for _, step := range []string{"new", "written"} {
		r := newRig(t)
		q := request("a", 10*second)
		resume := r.as.stop(step, 1, func() error { _, err := r.a.Acquire(t.Context(), q); return err })
		other := request("a", long)
		g := acquire(t, r.b, other)
		release(t, r.b, other)
		if err := resume(); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if h := inspect(t, r.b, "a").Holders(); len(h) != 1 || h[0].Token <= g.Token {
			t.Errorf("%s: the token of the writer that was stopped does not lie above the one that was given meanwhile", step)
		}
		release(t, r.a, q)
		if n := states(t, r.a); len(n) != 0 {
			t.Errorf("%s: states are left: %v", step, n)
		}
	}
}

func TestHolderThatIsNotRenewedExpires(t *testing.T) {
	r := newRig(t)
	q, other := request("a", 10*second), request("other", 10*second)
	acquire(t, r.a, q)
	acquire(t, r.a, other)
	w := request("a", long)
	done := background(t, r.b, w)
	r.advance(5 * second)
	if err := renew(r.a, other); err != nil {
		t.Fatal(err)
	}
	r.advance(5*second - 1)
	if h := inspect(t, r.b, "a").Holders(); len(h) != 1 || h[0].ID != q.ID || h[0].Left != 1 || h[0].Age != 10*second-1 {
		t.Fatalf("a moment before the TTL: %+v", h)
	}
	r.advance(1)
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
	if err := renew(r.a, q); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of the expired: %v", err)
	}
	if err := r.a.Release(t.Context(), q); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of the expired: %v", err)
	}
	if h := inspect(t, r.a, "a").Holders(); len(h) != 1 || h[0].ID != w.ID {
		t.Error("the successor was touched")
	}
	if err := renew(r.a, other); err != nil {
		t.Errorf("the hold that is renewed: %v", err)
	}
}

func TestWaiterIsKeptAlive(t *testing.T) {
	r := newRig(t)
	q, w := request("a", long), request("a", 10*second)
	acquire(t, r.a, q)
	done := background(t, r.b, w)
	for range 8 {
		r.advance(4 * second)
		eventually(t, "it is kept alive", func() bool {
			r.b.mu.Lock()
			h := r.b.requests[w.ID]
			r.b.mu.Unlock()
			at, err := load(h.word)
			return err == nil && int64(at) == r.now.Load()
		})
	}
	if err := renew(r.b, w); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Renew of what waits: %v", err)
	}
	release(t, r.a, q)
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
	if err := renew(r.b, w); err != nil {
		t.Error(err)
	}
}

func TestLateDuplicateCreatesNothing(t *testing.T) {
	r := newRig(t)
	q := request("a", 10*second)
	acquire(t, r.a, q)
	gone := q
	gone.Uncertain = true
	release(t, r.a, gone)
	r.advance(6 * second)
	// bars it for longer
	if err := r.a.Release(t.Context(), gone); !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	r.advance(10*second - 1)
	for _, b := range []*Backend{r.a, r.b} {
		if _, err := b.Acquire(t.Context(), q); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("late duplicate: %v", err)
		}
	}
	if n := inspect(t, r.b, "a").Len(); n != 0 {
		t.Error("the late duplicate created something")
	}
	r.advance(1)
	if inspect(t, r.b, "a"); len(states(t, r.b)) != 0 {
		t.Error("the tombstone stays")
	}
}

// Nobody comes to those names again, but the client that left the tombstones makes other calls.
func TestTombstonesDoNotPileUp(t *testing.T) {
	r := newRig(t)
	other := request("other", long)
	acquire(t, r.a, other)
	for i := range 10 {
		q := request(fmt.Sprint("a", i), 10*second)
		q.Uncertain = true
		acquire(t, r.a, q)
		release(t, r.a, q)
	}
	r.advance(10*second - 1)
	renew(r.a, other)
	if n := len(states(t, r.a)); n != 11 {
		t.Fatalf("%d states before the end", n)
	}
	r.advance(1)
	for range 5 {
		if err := renew(r.a, other); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(states(t, r.a)); n != 1 {
		t.Errorf("%d states after the tombstones' time", n)
	}
}

func TestBreak(t *testing.T) {
	r := newRig(t)
	q := request("a", 10*second)
	g := acquire(t, r.a, q)
	j := join(q, g)
	acquire(t, r.b, j)
	if err := r.b.Break(t.Context(), "a", g.Token+1, true); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("another token: %v", err)
	}
	if err := errors.Join(renew(r.a, q), renew(r.b, j)); err != nil {
		t.Fatal(err)
	}
	w := request("a", long)
	done := background(t, r.b, w)
	// that of who waits
	if err := r.b.Break(t.Context(), "a", 0, true); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("no token: %v", err)
	}
	for range 2 {
		if err := r.b.Break(t.Context(), "a", g.Token, false); err != nil {
			t.Fatal(err)
		}
		r.advance(second)
	}
	if h := inspect(t, r.b, "a").Holders(); len(h) != 2 || !h[0].Broken || !h[1].Broken || h[0].Left != 8*second {
		t.Errorf("holders after the break: %+v", h)
	}
	if !errors.Is(renew(r.a, q), driver.ErrLost) || !errors.Is(renew(r.b, j), driver.ErrLost) {
		t.Error("the broken can be renewed")
	}
	if _, err := r.b.Acquire(t.Context(), join(q, g)); !errors.Is(err, driver.ErrLost) {
		t.Errorf("joining the broken: %v", err)
	}
	r.advance(8*second - 1)
	if n := inspect(t, r.b, "a").Len(); n != 3 {
		t.Errorf("%d requests a moment before the end", n)
	}
	r.advance(1)
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
	next := inspect(t, r.a, "a").Holders()[0]
	if next.Token <= g.Token {
		t.Error("the token does not grow over a break")
	}
	if err := r.a.Break(t.Context(), "a", next.Token, true); err != nil {
		t.Fatal(err)
	}
	if inspect(t, r.a, "a").Len() != 0 {
		t.Error("force left something")
	}
	if err := renew(r.b, w); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew after force: %v", err)
	}
}

func TestFixedEndsUnlessItIsRenewed(t *testing.T) {
	r := newRig(t)
	q, other := request("a", 10*second), request("b", 10*second)
	q.Fixed = true
	acquire(t, r.a, q)
	acquire(t, r.a, other)
	r.advance(9 * second)
	if err := errors.Join(renew(r.a, other), renew(r.a, q)); err != nil {
		t.Fatal(err)
	}
	r.advance(9 * second)
	if err := renew(r.a, other); err != nil { // keeps the other alone
		t.Fatal(err)
	}
	r.advance(second)
	if err := r.try(); err != nil {
		t.Errorf("after its end: %v", err)
	}
	if err := renew(r.a, other); err != nil {
		t.Error(err)
	}
}

// Also where nobody has noticed that it expired.
func TestExpiredRequestIsNotRenewed(t *testing.T) {
	r := newRig(t)
	q := request("a", 10*second)
	acquire(t, r.a, q)
	r.advance(10 * second)
	for range 2 {
		if err := renew(r.a, q); !errors.Is(err, driver.ErrLost) {
			t.Errorf("err = %v", err)
		}
	}
}

func TestExpiredRequestIsNotResumed(t *testing.T) {
	r := newRig(t)
	q := request("a", 10*second)
	acquire(t, r.a, q)
	r.advance(10 * second)
	if _, err := r.a.Acquire(t.Context(), q); !errors.Is(err, driver.ErrLost) {
		t.Errorf("err = %v", err)
	}
	if n := inspect(t, r.b, "a").Len(); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}
