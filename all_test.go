package dlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

func TestAllLocksInOneOrderAndCarriesEveryPart(t *testing.T) {
	c, b := newHooked(t)
	var order []string
	b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		order = append(order, r.Name)
		return b.Backend.Acquire(ctx, r)
	}
	m := All(c.Mutex("b"), All(c.Semaphore("c", 2), c.RWMutex("a").Read()))
	if m.Name() != "a, b, c" {
		t.Error(m.Name())
	}
	l := mustLock(t, m, t.Context())
	if len(order) != 3 || order[0] != "a" || order[1] != "b" || order[2] != "c" {
		t.Errorf("order %v", order)
	}
	if ps := l.Leases(); len(ps) != 3 || ps[1].Name() != "b" || ps[1].Token() == 0 || l.Token() != 0 || !l.Owner().IsZero() {
		t.Errorf("parts %v", ps)
	}
	if u := l.Until(); u.After(l.Leases()[0].Until()) {
		t.Error("Until is not the least")
	}
	inner := mustLock(t, m, l.Context(t.Context()))
	if len(order) != 3 {
		t.Error("re-entry called the backend")
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	mustUnlock(t, inner)
	ctx := l.Context(t.Context())
	mustUnlock(t, l)
	if ctx.Err() == nil || isLost(l) {
		t.Error("after Unlock the context lives, or Lost is closed")
	}
	wantErr(t, l.Unlock(t.Context()), ErrNotHeld)
	for _, name := range []string{"a", "b", "c"} {
		if !free(t, c, name) {
			t.Error(name, "is not free")
		}
	}
}

func TestAllOrNothing(t *testing.T) {
	c, _ := newHooked(t)
	held := mustLock(t, c.Mutex("b"), t.Context())
	_, err := All(c.Mutex("a"), c.Mutex("b"), c.Mutex("c")).TryLock(t.Context())
	wantErr(t, err, ErrHeld)
	if e := (*Error)(nil); !errors.As(err, &e) || e.Name != "b" {
		t.Errorf("%v does not name the culprit", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = All(c.Mutex("a"), c.Mutex("b")).Lock(ctx)
	wantErr(t, err, context.DeadlineExceeded)
	if !free(t, c, "a") || !free(t, c, "c") {
		t.Error("a part was left behind")
	}
	mustUnlock(t, held)
}

func TestLosingOnePartLosesTheWholeAndTheRestIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		l := mustLock(t, All(c.Mutex("a"), c.Mutex("b")), t.Context())
		ctx := l.Context(t.Context())
		if err := c.Break(t.Context(), "b", l.Leases()[1].Token(), Force()); err != nil {
			t.Fatal(err)
		}
		mustBeLost(t, l)
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), ErrLost)
		wantErr(t, l.Err(), ErrLost)
		if l.Leases()[0].Err() != nil {
			t.Error("the other part:", l.Leases()[0].Err())
		}
		wantErr(t, l.Unlock(t.Context()), ErrLost)
		synctest.Wait()
		if !free(t, c, "a") || !free(t, c, "b") {
			t.Error("not released")
		}
		_ = b
	})
}

func TestReleasingOnePartIsNoLossLosingAnotherIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _ := newHooked(t)
		l := mustLock(t, All(c.Mutex("a"), c.Mutex("b")), t.Context())
		mustUnlock(t, l.Leases()[0])
		if isLost(l) {
			t.Error("lost by an Unlock")
		}
		if err := c.Break(t.Context(), "b", l.Leases()[1].Token(), Force()); err != nil {
			t.Fatal(err)
		}
		mustBeLost(t, l)
	})
}

func TestAPartLostWhileAllWaitsForAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		held := mustLock(t, c.Mutex("b"), t.Context())
		res := make(chan error)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // renewals go on for ever
		defer cancel()
		go func() {
			_, err := All(c.Mutex("a"), c.Mutex("b")).Lock(ctx)
			res <- err
		}()
		synctest.Wait()
		q, err := c.Inspect(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Break(t.Context(), "a", q.Holders[0].Token, true); err != nil {
			t.Fatal(err)
		}
		err = <-res
		wantErr(t, err, ErrLost)
		if errors.Is(err, context.Canceled) {
			t.Errorf("%v looks as if the caller's context had ended", err)
		}
		mustUnlock(t, held)
		synctest.Wait()
		if !free(t, c, "a") || !free(t, c, "b") {
			t.Error("left behind")
		}
	})
}

func TestAllOverTwoBackends(t *testing.T) {
	one, two := newOn(t, newMemory(nil)), newOn(t, newMemory(nil))
	_, err := All(one.Mutex("a"), two.Mutex("a")).Lock(t.Context())
	wantErr(t, err, ErrInvalid)

	one, two = newOn(t, newMemory(nil), Identity("1")), newOn(t, newMemory(nil), Identity("2"))
	l := mustLock(t, All(two.Mutex("a"), one.Mutex("a")), t.Context())
	if l.Leases()[0].shares[0].held.c != one {
		t.Error("not in the order of the keys")
	}
	ctx := l.Context(t.Context())
	for _, c := range []*Client{one, two} {
		in := mustLock(t, c.Mutex("a"), ctx)
		mustUnlock(t, in)
	}
	mustUnlock(t, l)

	space := new(memory.Space)
	one, two = newOn(t, newMemory(space)), newOn(t, newMemory(space))
	_, err = All(one.Mutex("a"), two.Mutex("a")).Lock(t.Context())
	wantErr(t, err, ErrInvalid)
}

func TestACancelledAllReturnsInTimeWhateverReleaseDoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Hour))
		held := mustLock(t, c.Mutex("z"), t.Context())
		var cut atomic.Bool
		cut.Store(true)
		b.release = func(ctx context.Context, r driver.Request) error {
			if cut.Load() {
				return hang(ctx)
			}
			return b.Backend.Release(ctx, r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := All(c.Mutex("a"), c.Mutex("b"), c.Mutex("z")).Lock(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start) - time.Second; d > 100*time.Millisecond {
			t.Errorf("returned %s after the end of its context", d)
		}
		cut.Store(false)
		time.Sleep(2*grace + 2*longestPause)
		if !free(t, c, "a") || !free(t, c, "b") {
			t.Error("not released when the backend came back")
		}
		mustUnlock(t, held)
	})
}

func TestAllNamesWhatWasTried(t *testing.T) {
	c, _ := newHooked(t)
	mustLock(t, c.Mutex("b"), t.Context())
	_, err := All(c.Mutex("a"), c.Mutex("b")).TryLock(t.Context())
	if e := (*Error)(nil); !errors.As(err, &e) || e.Op != "trylock" {
		t.Error(err)
	}
}

func TestAllDistinguishesALossFromTheEndOfAContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _ := newHooked(t)
		mustLock(t, c.Mutex("b"), t.Context())
		start := time.Now()
		_, err := All(c.Mutex("a", FixedLease(5*time.Second)), c.Mutex("b")).Lock(t.Context())
		wantErr(t, err, ErrLost)
		if isContext(err) || errors.Is(err, ErrHeld) || time.Since(start) > 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}
