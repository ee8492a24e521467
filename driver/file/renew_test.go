//go:build linux || darwin

package file

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// The TTL of a proof counts from before the reading of the clock that arms the request.
func TestProofBeginsBeforeTheClockIsRead(t *testing.T) {
	var read atomic.Pointer[time.Time] // when the clock was read last
	c := testConfig()
	c.clock = func() (int64, error) {
		ns, err := monotonic()
		at := time.Now()
		read.Store(&at)
		for !time.Now().After(at) {
		}
		return ns, err
	}
	b := openTestConfig(t, t.TempDir(), c)
	q := request("a", long)
	for _, what := range []string{"a grant", "a grant sent again"} {
		if g := acquire(t, b, q); g.SentAt.After(*read.Load()) {
			t.Errorf("%s counts from %s after the clock was read", what, g.SentAt.Sub(*read.Load()))
		}
	}
	p := b.Renew(t.Context(), []driver.Request{q})[0]
	if p.Err != nil || p.SentAt.After(*read.Load()) {
		t.Errorf("a renewal counts from %s after the clock was read; %v", p.SentAt.Sub(*read.Load()), p.Err)
	}
}

// A renewal that is stopped until another client holds fails.
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

// A renewal reads the clock in time, and is stopped before it writes its cell. Then the request
// expires, and another client takes the lock in two updates: mark and drop. Wherever the renewal
// continues in between, exactly one of the two has the lock.
func TestRenewalAndTheftSeeEachOther(t *testing.T) {
	for _, c := range []struct {
		step  string // of the thief, during which the renewal completes
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

// Renewals before the break count for the end of the broken hold. Nothing postpones that end.
func TestRenewalAndBreakSeeEachOther(t *testing.T) {
	for _, c := range []struct {
		step    string // of the break, during which the renewal runs
		n       int
		renewed error
		left    time.Duration
	}{
		// the renewal did not see the break: its TTL counts
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
		t.Errorf("Renew of an expired request: %v", err)
	}
	if err := r.a.Release(t.Context(), q); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of an expired request: %v", err)
	}
	if h := inspect(t, r.a, "a").Holders(); len(h) != 1 || h[0].ID != w.ID {
		t.Error("the successor was touched")
	}
	if err := renew(r.a, other); err != nil {
		t.Errorf("the hold that is renewed: %v", err)
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
	if err := renew(r.a, other); err != nil { // keeps only the other
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

// That is so even if no client has detected yet that it expired.
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

// While a path cannot be followed there is no grant and no renewal. It ends no hold either.
func TestPathThatCannotBeFollowed(t *testing.T) {
	b := openTest(t, t.TempDir())
	held := request("held", long)
	acquire(t, b, held)
	path := b.table.files[0].path
	b.table.files[0].path = strings.Repeat("x", 1<<13) // too long for any user
	if err := renew(b, held); !errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	refused := request("free", long)
	if _, err := b.Acquire(t.Context(), refused); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("Acquire: %v", err)
	}
	b.table.files[0].path = path
	release(t, b, refused)
	if err := renew(b, held); err != nil {
		t.Errorf("Renew, when the path can be followed again: %v", err)
	}
	if q := inspect(t, b, "free"); len(q.Arrivals) > 0 {
		t.Errorf("the refused request is in the queue: %v", q.Arrivals)
	}
	release(t, b, held)
}
