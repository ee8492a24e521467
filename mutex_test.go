package dlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

func TestReentryMakesNoCallAndIsCounted(t *testing.T) {
	c, b := newHooked(t)
	outer := mustLock(t, c.Mutex("a"), t.Context())
	ctx := outer.Context(t.Context())
	inner := mustLock(t, c.RWMutex("a").Write(), ctx)
	if again, err := c.Mutex("a").TryLock(inner.Context(ctx)); err != nil {
		t.Fatal(err)
	} else {
		mustUnlock(t, again)
	}
	if inner.Token() != outer.Token() || inner.Owner() != outer.Owner() {
		t.Error("the inner lease has another token or owner")
	}
	if n := b.acquires.Load(); n != 1 {
		t.Errorf("%d calls to Acquire; want 1", n)
	}
	mustUnlock(t, outer)
	if free(t, c, "a") {
		t.Error("free although the inner lease is held")
	}
	if inner.Err() != nil {
		t.Error(inner.Err())
	}
	mustUnlock(t, inner)
	if !free(t, c, "a") || b.releases.Load() != 1 {
		t.Errorf("not free, or %d releases", b.releases.Load())
	}
}

func TestReentryUnderAHoldThatHasEndedIsLost(t *testing.T) {
	c, _ := newHooked(t)
	l := mustLock(t, c.Mutex("a"), t.Context())
	ctx := l.Context(t.Context())
	mustUnlock(t, l)
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrNotHeld) {
		t.Fatalf("context after Unlock: %v, cause %v", ctx.Err(), context.Cause(ctx))
	}
	_, err := c.Mutex("a").Lock(context.WithoutCancel(ctx))
	wantErr(t, err, ErrLost)
	if _, err = c.Mutex("b").Lock(context.WithoutCancel(ctx)); err != nil {
		t.Fatal("another name:", err)
	}
}

func TestAContextCarriesItsOwnNameOnly(t *testing.T) {
	c, _ := newHooked(t)
	ctx := mustLock(t, c.Mutex("a"), t.Context()).Context(t.Context())
	mustLock(t, c.Mutex("b"), ctx)
	_, err := c.Mutex("b").TryLock(ctx)
	wantErr(t, err, ErrHeld)
}

func TestNestedContextsCarryAllNames(t *testing.T) {
	c, b := newHooked(t)
	ctx := mustLock(t, c.Mutex("a"), t.Context()).Context(t.Context())
	ctx = mustLock(t, c.Mutex("b"), ctx).Context(ctx)
	mustLock(t, c.Mutex("a"), ctx)
	mustLock(t, c.Mutex("b"), ctx)
	if n := b.acquires.Load(); n != 2 {
		t.Errorf("%d calls to Acquire; want 2", n)
	}
}

func TestJoinFromAnotherClient(t *testing.T) {
	space := new(memory.Space)
	one, two := newOn(t, newMemory(space)), newOn(t, newMemory(space))
	other := newOn(t, newMemory(nil))
	l := mustLock(t, one.Mutex("a"), t.Context())

	for what, ctx := range map[string]context.Context{
		"context": l.Context(t.Context()),
		"text":    WithOwner(t.Context(), mustParse(t, l.Owner().String())),
	} {
		j, err := two.Mutex("a").Lock(ctx)
		if err != nil {
			t.Fatal(what, err)
		}
		if j.Token() != l.Token() || j.Owner() != l.Owner() {
			t.Errorf("%s: another token or owner", what)
		}
		mustUnlock(t, j)
	}
	if _, err := two.Mutex("a").TryLock(t.Context()); !errors.Is(err, ErrHeld) {
		t.Error("an arrival:", err)
	}
	// A context does not affect a backend that is known to be another one.
	mustUnlock(t, mustLock(t, other.Mutex("a"), l.Context(t.Context())))

	j := mustLock(t, two.Mutex("a"), WithOwner(t.Context(), l.Owner()))
	mustUnlock(t, l)
	if free(t, one, "a") {
		t.Error("free although the join holds")
	}
	mustUnlock(t, j)
	if !free(t, one, "a") {
		t.Error("not free after the last Unlock")
	}
	_, err := two.Mutex("a").Lock(WithOwner(t.Context(), l.Owner()))
	wantErr(t, err, ErrLost)
	if !free(t, one, "a") {
		t.Error("the refused join stands in the queue")
	}
	if WithOwner(t.Context(), Owner{}) != t.Context() {
		t.Error("the zero Owner changed the context")
	}
}

func TestUpgradeIsRefusedDowngradeWorks(t *testing.T) {
	c, _ := newHooked(t)
	rw := c.RWMutex("a")
	r := mustLock(t, rw.Read(), t.Context())
	_, err := rw.Write().Lock(r.Context(t.Context()))
	wantErr(t, err, ErrUpgrade)
	if r.Err() != nil {
		t.Error("the shared lease was harmed:", r.Err())
	}
	mustUnlock(t, r)

	w := mustLock(t, rw.Write(), t.Context())
	d := mustLock(t, rw.Read(), w.Context(t.Context()))
	mustUnlock(t, w)
	if _, err := rw.Write().TryLock(t.Context()); !errors.Is(err, ErrHeld) {
		t.Error("writer beside the downgraded reader:", err)
	}
	mustUnlock(t, mustLock(t, rw.Read(), t.Context()))
	// the owner still holds, but that lease of it has ended
	_, err = rw.Read().Lock(context.WithoutCancel(w.Context(t.Context())))
	wantErr(t, err, ErrLost)
	mustUnlock(t, d)
	if !free(t, c, "a") {
		t.Error("not free")
	}
}

func TestInvalidLocks(t *testing.T) {
	c, b := newHooked(t)
	long := strings.Repeat("x", 256)
	for what, m := range map[string]Mutex{
		"empty name":        c.Mutex(""),
		"long name":         c.Mutex(long),
		"invalid UTF-8":     c.RWMutex("a\xff").Read(),
		"control character": c.Semaphore("a\nb", 1),
		"C1 control":        c.Mutex("a\u0085"),
		"semaphore of 0":    c.Semaphore("a", 0),
		"semaphore of 2³¹":  c.Semaphore("a", math.MaxInt32+1),
		"semaphore of -1":   c.Semaphore("a", -1),
		"TTL of 0":          c.Mutex("a", TTL(0)),
		"negative TTL":      c.Mutex("a", TTL(-time.Second)),
		"TTL over a day":    c.Mutex("a", TTL(day+1)),
		"fixed over a day":  c.Mutex("a", FixedLease(day+1)),
		"TTL under the min": c.Mutex("a", TTL(1)),
		"long label":        c.Mutex("a", Label(long)),
		"All of none":       All(),
		"All of nil":        All(c.Mutex("a"), nil),
		"All twice":         All(c.Mutex("a"), c.RWMutex("a").Read()),
		"All, bad part":     All(c.Mutex("a"), c.Mutex("")),
		"All of bad All":    All(c.Mutex("a"), All()),
	} {
		_, err := m.Lock(t.Context())
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", what, err)
		}
		if e := (*Error)(nil); !errors.As(err, &e) {
			t.Errorf("%s: no *Error", what)
		}
		if name := strings.Contains(what, "name") || strings.Contains(what, "UTF") || strings.Contains(what, "control"); name != errors.Is(err, ErrInvalidName) && !strings.HasPrefix(what, "All") && !strings.HasPrefix(what, "C1") {
			t.Errorf("%s: matches ErrInvalidName: %t", what, !name)
		}
	}
	if !free(t, c, "a") {
		t.Error("a lock was left behind")
	}
	if n := b.acquires.Load() - b.releases.Load(); n != 0 {
		t.Errorf("%d locks left behind", n)
	}
	for what, err := range map[string]error{
		"Do without mutex":    Do(t.Context(), nil, func(context.Context) error { return nil }),
		"Do without function": Do(t.Context(), c.Mutex("a"), nil),
	} {
		wantErr(t, err, ErrInvalid)
		_ = what
	}
	if _, err := c.Inspect(t.Context(), ""); !errors.Is(err, ErrInvalidName) {
		t.Error(err)
	}
	wantErr(t, c.Break(t.Context(), "a", 1), ErrNotHeld)
}

func TestConflictLeavesTheFirst(t *testing.T) {
	c, _ := newHooked(t)
	l := mustLock(t, c.Mutex("a"), t.Context())
	_, err := c.Semaphore("a", 3).Lock(t.Context())
	wantErr(t, err, ErrConflict)
	_, err = c.Semaphore("a", 3).Lock(l.Context(t.Context()))
	wantErr(t, err, ErrConflict)
	if l.Err() != nil {
		t.Error(l.Err())
	}
	mustUnlock(t, l)
	p := mustLock(t, c.Semaphore("a", 3), t.Context())
	_, err = c.RWMutex("a").Read().Lock(t.Context())
	wantErr(t, err, ErrConflict)
	// Both are shared, but of different kinds.
	_, err = c.RWMutex("a").Read().Lock(p.Context(t.Context()))
	wantErr(t, err, ErrConflict)
	mustUnlock(t, p)
	r := mustLock(t, c.RWMutex("a").Read(), t.Context())
	_, err = c.Semaphore("a", 3).Lock(r.Context(t.Context()))
	wantErr(t, err, ErrConflict)
	mustUnlock(t, r)
}

func TestErrorsOfTheContext(t *testing.T) {
	bubble(t, func(t *testing.T) { // so that the short contexts live until the backend gets them
		c, b := newHooked(t)
		held := mustLock(t, c.Mutex("a"), t.Context())

		done, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the shop closed"))
		n := b.acquires.Load()
		for _, m := range []Mutex{c.Mutex("free"), All(c.Mutex("x"), c.Mutex("y"))} {
			_, err := m.Lock(done)
			wantErr(t, err, context.Canceled)
			if !strings.Contains(err.Error(), "the shop closed") {
				t.Errorf("%v does not have the cause", err)
			}
		}
		if b.acquires.Load() != n {
			t.Error("a context that had ended reached the backend")
		}

		late := errors.New("the shop closes")
		short, stop := context.WithTimeoutCause(t.Context(), time.Millisecond, late)
		defer stop()
		_, err := c.Mutex("a").Lock(short)
		wantErr(t, err, context.DeadlineExceeded)
		wantErr(t, err, late)
		wantErr(t, err, ErrHeld) // it stood in the queue
		_, err = c.Mutex("a").TryLock(t.Context())
		wantErr(t, err, ErrHeld)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("a refusal looks like a timeout")
		}
		// A driver that reports its own error when the context ends.
		own := errors.New("i/o timeout")
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, own
		}
		short, stop = context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		_, err = c.Mutex("b").Lock(short)
		wantErr(t, err, context.DeadlineExceeded)
		wantErr(t, err, own)
		if errors.Is(err, ErrHeld) {
			t.Error("there was no answer, and the error says that the lock is held:", err)
		}
		mustUnlock(t, held)
	})
}

func TestABackendWithoutQueueIsWaitedForWithJitter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		var last time.Time
		pauses := map[time.Duration]bool{}
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			wait := r.Wait
			if wait && !last.IsZero() {
				pauses[time.Since(last)] = true
			}
			last = time.Now()
			r.Wait = false
			g, err := b.Backend.Acquire(ctx, r)
			if wait && errors.Is(err, ErrHeld) {
				err = &driver.RetryError{After: 100 * time.Millisecond}
			}
			return g, err
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		got := make(chan *Lease)
		start := time.Now()
		go func() {
			l, _ := c.Mutex("a").Lock(t.Context())
			got <- l
		}()
		time.Sleep(10 * time.Second)
		mustUnlock(t, l)
		next := <-got
		if d := time.Since(start) - 10*time.Second; d > 150*time.Millisecond {
			t.Errorf("got it %s after the release", d)
		}
		if n := b.acquires.Load(); n < 60 || n > 200 {
			t.Errorf("%d attempts in 10s at 100 ms", n)
		}
		if len(pauses) < 30 {
			t.Errorf("the pauses between the attempts are always the same: %v", pauses)
		}
		_, err := c.Mutex("a").TryLock(t.Context())
		wantErr(t, err, ErrHeld)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Mutex("a").Lock(short)
		wantErr(t, err, context.DeadlineExceeded)
		wantErr(t, err, ErrHeld)
		mustUnlock(t, next)
	})
}

func TestAGrantThatArrivesAfterItsTTLIsNoLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Second))
		slow := 2
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := b.Backend.Acquire(ctx, r)
			if slow > 0 {
				slow--
				time.Sleep(2 * time.Second) // the reply is held up
			}
			return g, err
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		if l.Err() != nil || b.acquires.Load() != 3 {
			t.Errorf("%v after %d requests; want a good lease of the third", l.Err(), b.acquires.Load())
		}
		mustUnlock(t, l)
		slow = 100
		n := b.releases.Load()
		_, err := c.Mutex("a").Lock(t.Context())
		wantErr(t, err, ErrLost)
		if !strings.Contains(err.Error(), "3 grants had expired when they arrived; the TTL of 1s may be too short") {
			t.Error("it does not say why:", err)
		}
		if n = b.releases.Load() - n; n != lateGrants {
			t.Errorf("%d late grants released; want %d", n, lateGrants)
		}
		if !free(t, c, "a") {
			t.Error("a late grant was left behind")
		}
	})
}

func TestARequestLostWhileItWaitsTakesANewPlace(t *testing.T) {
	c, b := newHooked(t)
	lose, sent := 2, map[driver.ID]bool{}
	b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if sent[r.ID] || r.Owner != r.ID {
			t.Errorf("request %s of owner %s was sent again", r.ID, r.Owner)
		}
		sent[r.ID] = true
		if lose > 0 {
			lose--
			return driver.Grant{}, ErrLost
		}
		return b.Backend.Acquire(ctx, r)
	}
	mustUnlock(t, mustLock(t, c.Mutex("a"), t.Context()))
	lose = 100
	_, err := c.Mutex("a").Lock(t.Context())
	wantErr(t, err, ErrLost)
	if !strings.Contains(err.Error(), "expired in the queue 3 times") {
		t.Error("it does not say why:", err)
	}
	if lose != 100-lateGrants {
		t.Errorf("%d requests; want %d", 100-lose, lateGrants)
	}
	_, err = c.Mutex("a").TryLock(t.Context())
	wantErr(t, err, ErrLost)
	if lose != 100-lateGrants-1 {
		t.Error("TryLock asked again")
	}
}

func TestDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Second))
		m, own := c.Mutex("a"), errors.New("own")

		if err := Do(t.Context(), m, func(ctx context.Context) error {
			l, err := m.Lock(ctx)
			if err == nil {
				defer l.Unlock(ctx)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if err := Do(t.Context(), m, func(context.Context) error { return own }); err != own {
			t.Errorf("%v; want fn's own error as it is", err)
		}
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic did not come through")
				}
			}()
			Do(t.Context(), m, func(context.Context) error { panic("boom") })
		}()
		if !free(t, c, "a") {
			t.Error("not released after a panic")
		}
		b.renew = hungRenew
		err := Do(t.Context(), m, func(ctx context.Context) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrLost) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return nil
		})
		wantErr(t, err, ErrLost)
	})
}

func TestSemaphoreAndReadersShare(t *testing.T) {
	c, _ := newHooked(t)
	s := c.Semaphore("s", 3)
	var ls []*Lease
	for range 3 {
		ls = append(ls, mustLock(t, s, t.Context()))
	}
	_, err := s.TryLock(t.Context())
	wantErr(t, err, ErrHeld)
	_, err = c.Semaphore("s", 10).TryLock(t.Context()) // the smallest in use counts
	wantErr(t, err, ErrHeld)
	for _, l := range ls {
		mustUnlock(t, l)
	}
}

func TestConcurrentUseOfOneMutexValue(t *testing.T) {
	c, _ := newHooked(t)
	m, sum, wg := c.Mutex("a"), 0, sync.WaitGroup{}
	for range 50 {
		wg.Go(func() {
			l := mustLock(t, m, t.Context())
			sum++ // the race detector watches
			mustUnlock(t, l)
		})
	}
	wg.Wait()
	if sum != 50 {
		t.Error(sum)
	}
}

func mustParse(t testing.TB, s string) Owner {
	t.Helper()
	o, err := ParseOwner(s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestNothingJoinsAHoldThatItsClientDoesNotTrust(t *testing.T) {
	// The service may keep the hold for some time, but it must not be joined.
	space := new(memory.Space)
	late := time.Duration(0)
	one := newOn(t, newMemory(space), TTL(time.Hour), clock(func() time.Time { return time.Now().Add(late) }))
	two := newOn(t, newMemory(space))
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for what, lock := range map[string]func(context.Context) (*Lease, error){
		"same mode":      one.Mutex("a").Lock,
		"other mode":     one.RWMutex("a").Read().Lock,
		"another client": two.Mutex("a").Lock,
	} {
		l := mustLock(t, one.Mutex("a"), soon)
		ctx := context.WithoutCancel(l.Context(t.Context()))
		late = time.Hour // as if the timer were late
		_, err := lock(ctx)
		late = 0
		if !errors.Is(err, ErrLost) {
			t.Fatalf("%s: %v; want ErrLost", what, err) // the next would wait for it for ever
		}
	}
	l := mustLock(t, one.Mutex("a"), soon)
	ctx := context.WithoutCancel(l.Context(t.Context()))
	one.Close()
	_, err := two.Mutex("a").Lock(ctx)
	wantErr(t, err, ErrLost)
	_, err = one.Mutex("a").Lock(ctx)
	wantErr(t, err, ErrClosed)
}

func TestALateGrantDoesNotHoldUpACancelledLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Second))
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if ctx.Err() != nil {
				return driver.Grant{}, ctx.Err()
			}
			g, err := b.Backend.Acquire(ctx, r)
			<-ctx.Done() // the reply and the end of the context race
			return g, err
		}
		b.release = func(ctx context.Context, r driver.Request) error { return hang(ctx) }
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		_, err := c.Mutex("a").Lock(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start) - 2*time.Second; d > 100*time.Millisecond {
			t.Errorf("returned %s after the end of its context", d)
		}
		synctest.Wait()
		if b.releases.Load() == 0 {
			t.Error("the service may keep the grant for its TTL, and there is no release")
		}
	})
}

func TestALossReportedBeforeItsGrantIsNoLease(t *testing.T) {
	c, b := newHooked(t)
	early := 1
	b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		g, err := b.Backend.Acquire(ctx, r)
		if early > 0 && err == nil {
			early--
			c.holds.Report(r.ID)
		}
		return g, err
	}
	l := mustLock(t, c.Mutex("a", FixedLease(time.Hour)), t.Context())
	if a := b.acquires.Load(); a != 2 || l.Err() != nil {
		t.Errorf("%d requests, %v; want a good lease of the second", a, l.Err())
	}
	_, err := c.Mutex("a").TryLock(t.Context())
	wantErr(t, err, ErrHeld)
	mustUnlock(t, l)
	if !free(t, c, "a") {
		t.Error("the first was left behind")
	}
}

func TestWaitBoundsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		held := mustLock(t, c.Mutex("a"), t.Context())
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, tt := range []struct {
			what       string
			ctx        context.Context
			m          Mutex
			took       time.Duration
			is, is2    error
			contextual bool
		}{
			{"Wait", t.Context(), c.Mutex("a", Wait(3*time.Second)), 3 * time.Second, ErrHeld, ErrHeld, false},
			{"Wait(0)", t.Context(), c.Mutex("a", Wait(0)), 0, ErrHeld, ErrHeld, false},
			{"Wait under All", t.Context(), All(c.Mutex("b"), c.Mutex("a", Wait(time.Second))), time.Second, ErrHeld, ErrHeld, false},
			{"negative", t.Context(), c.Mutex("a", Wait(-1)), 0, ErrInvalid, ErrInvalid, false},
			{"a context that ends before", short, c.Mutex("a", Wait(time.Minute)), time.Second, context.DeadlineExceeded, ErrHeld, true},
		} {
			if tt.contextual {
				tt.ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				defer cancel()
			}
			start := time.Now()
			bound, done := context.WithTimeout(tt.ctx, time.Hour) // renewals go on for ever
			_, err := tt.m.Lock(bound)
			done()
			if took := time.Since(start); took != tt.took || !errors.Is(err, tt.is) || !errors.Is(err, tt.is2) || isContext(err) != tt.contextual {
				t.Errorf("%s: %v after %s", tt.what, err, took)
			}
			if strings.Contains(err.Error(), "did not answer") {
				t.Errorf("%s: %v; the backend did answer", tt.what, err)
			}
		}
		if !free(t, c, "b") {
			t.Error("the part that All had is not released")
		}

		time.AfterFunc(time.Second, func() { mustUnlock(t, held) })
		if err := Do(t.Context(), c.Mutex("a", Wait(2*time.Second)), func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		}); err != nil {
			t.Error("Wait bounds the work:", err)
		}

		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) { return driver.Grant{}, hang(ctx) }
		start := time.Now()
		_, err := c.Mutex("a", Wait(2*time.Second)).Lock(t.Context())
		if took := time.Since(start); took != 2*time.Second || isContext(err) || errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), "did not answer within 2s") {
			t.Errorf("a backend that does not answer: %v after %s", err, took)
		}
	})
}

// A wait that ends because an outer lease was lost does not report the loss of its own lock.
func TestAWaitThatEndsWithAnOuterLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		space := new(memory.Space)
		c, other := newOn(t, newMemory(space)), newOn(t, newMemory(space))
		mustLock(t, other.Mutex("b"), t.Context())
		outer := mustLock(t, c.Mutex("a", FixedLease(5*time.Second)), t.Context())
		start := time.Now()
		_, err := c.Mutex("b").Lock(outer.Context(t.Context()))
		if took := time.Since(start); took > 5*time.Second {
			t.Error("after", took)
		}
		for _, is := range []error{context.Canceled, ErrLost, ErrHeld} {
			wantErr(t, err, is)
		}
	})
}

func TestAWaitForOneselfIsReported(t *testing.T) {
	const ttl = 10 * time.Second
	const says = "pass lease.Context"
	for what, tt := range map[string]struct {
		hold, wait func(c, other *Client) Mutex
		foreign    bool
		warns      int
	}{
		"exclusive": {hold: func(c, _ *Client) Mutex { return c.Mutex("a", Label("till 3")) }, wait: func(c, _ *Client) Mutex { return c.Mutex("a") }, warns: 1},
		"under All": {hold: func(c, _ *Client) Mutex { return c.Mutex("a", Label("till 3")) }, wait: func(c, _ *Client) Mutex { return All(c.Mutex("A"), c.Mutex("a")) }, warns: 1},
		"a permit":  {hold: func(c, _ *Client) Mutex { return c.Semaphore("a", 1, Label("till 3")) }, wait: func(c, _ *Client) Mutex { return c.Semaphore("a", 1) }, warns: 1},
		"a writer":  {hold: func(c, _ *Client) Mutex { return c.RWMutex("a", Label("till 3")).Read() }, wait: func(c, _ *Client) Mutex { return c.Mutex("a") }, warns: 1},
		"another's": {hold: func(_, other *Client) Mutex { return other.Mutex("a") }, wait: func(c, _ *Client) Mutex { return c.Mutex("a") }},
	} {
		bubble(t, func(t *testing.T) {
			var log syncBuffer
			space := new(memory.Space)
			c, other := newOn(t, newMemory(space), TTL(ttl), Logger(textLogger(&log))), newOn(t, newMemory(space), TTL(ttl))
			l := mustLock(t, tt.hold(c, other), t.Context())
			time.Sleep(time.Minute) // the age of the hold does not matter
			got := make(chan *Lease)
			go func() { got <- mustLock(t, tt.wait(c, other), t.Context()) }()
			time.Sleep(ttl - time.Second)
			if s := log.String(); s != "" {
				t.Errorf("%s: too early: %s", what, s)
			}
			time.Sleep(5 * ttl)
			s := log.String()
			advice := says
			if what == "a writer" {
				advice = "release the read lease first"
			}
			if strings.Count(s, advice) != tt.warns || tt.warns > 0 && (!strings.Contains(s, "level=WARN") || !strings.Contains(s, "name=a") || !strings.Contains(s, "till 3") || !strings.Contains(s, "held=1m10s")) {
				t.Errorf("%s: want %d warnings: %s", what, tt.warns, s)
			}
			mustUnlock(t, l)
			mustUnlock(t, <-got)
		})
	}
	// Contention is no wait for oneself, however long it lasts: each hold is short.
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		c := newOn(t, newMemory(nil), TTL(time.Second), Logger(textLogger(&log)))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				l := mustLock(t, c.Mutex("a"), t.Context())
				time.Sleep(100 * time.Millisecond)
				mustUnlock(t, l)
			})
		}
		wg.Wait()
		if s := log.String(); s != "" {
			t.Error(s)
		}
	})
	// However many requests wait, each hold is logged once.
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		c := newOn(t, newMemory(nil), TTL(time.Second), Logger(textLogger(&log)))
		l := mustLock(t, c.Mutex("a", Label("first")), t.Context())
		second := c.Mutex("a", Label("second"))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				l := mustLock(t, second, t.Context())
				if strings.Count(log.String(), says) == 1 {
					time.Sleep(10 * time.Second)
				}
				mustUnlock(t, l)
			})
		}
		time.Sleep(10 * time.Second)
		if s := log.String(); strings.Count(s, says) != 1 || !strings.Contains(s, "holder=first") {
			t.Errorf("with 100 that wait: %s", s)
		}
		mustUnlock(t, l)
		wg.Wait()
		if s := log.String(); strings.Count(s, says) != 2 || !strings.Contains(s, "holder=second") {
			t.Errorf("after the second hold: %s", s)
		}
	})
	// TryLock reports it at once, and only if it is true.
	space := new(memory.Space)
	c, other := newOn(t, newMemory(space)), newOn(t, newMemory(space))
	mustLock(t, c.Mutex("mine"), t.Context())
	mustLock(t, other.Mutex("theirs"), t.Context())
	for name, own := range map[string]bool{"mine": true, "theirs": false} {
		for _, m := range []Mutex{c.Mutex(name), All(c.Mutex("free"), c.Mutex(name))} {
			_, err := m.TryLock(t.Context())
			wantErr(t, err, ErrHeld)
			if strings.Contains(err.Error(), "held by this client") != own {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// A driver that says that nothing of the TTL is left is believed.
func TestAGrantThatHasExpiredIsNotTrusted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := b.Backend.Acquire(ctx, r)
			g.TTL = -time.Millisecond
			return g, err
		}
		_, err := c.Mutex("a").Lock(t.Context())
		wantErr(t, err, ErrLost)
	})
}

func TestALostHoldIsNotJoinedByItsText(t *testing.T) {
	bubble(t, func(t *testing.T) {
		space := new(memory.Space)
		b := &hooked{Backend: newMemory(space)}
		c, other := newOn(t, b, TTL(time.Second)), newOn(t, newMemory(space))
		var cut atomic.Bool
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			if cut.Load() {
				b.Backend.Renew(ctx, rs) // the service renews, and the client does not know
				return hungRenew(ctx, rs)
			}
			return b.Backend.Renew(ctx, rs)
		}
		b.release = func(ctx context.Context, r driver.Request) error {
			if cut.Load() {
				return hang(ctx)
			}
			return b.Backend.Release(ctx, r)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		text := WithOwner(t.Context(), mustParse(t, l.Owner().String()))
		mustUnlock(t, mustLock(t, c.Mutex("a"), text)) // it is still trusted
		cut.Store(true)
		for range 100 { // the first to be notified asks at once
			ctx := l.Context(t.Context())
			context.AfterFunc(ctx, func() {
				if _, err := c.RWMutex("a").Read().TryLock(text); !errors.Is(err, ErrLost) {
					t.Errorf("a join by a client that was notified of the loss: %v", err)
				}
			})
		}
		<-l.Lost()
		if free(t, other, "a") {
			t.Fatal("the service does not have the hold any more; this test proves nothing")
		}
		_, err := c.Mutex("a").Lock(text)
		wantErr(t, err, ErrLost)
		synctest.Wait()
		cut.Store(false)
		time.Sleep(grace + 2*longestPause)
		if !free(t, other, "a") {
			t.Error("not released")
		}
		_, err = c.Mutex("a").Lock(text)
		wantErr(t, err, ErrLost)
	})
}
