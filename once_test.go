package dlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// twoOf opens two clients of one space; the backend of the first can be spoiled.
func twoOf(t *testing.T, opts ...Option) (a, b *Client, h *hooked) {
	t.Helper()
	cs, hs := candidates(t, 2, opts...)
	return cs[0], cs[1], hs[0]
}

func TestUnlockAfterKeepsTheLockHeld(t *testing.T) {
	for _, closes := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			a, b, h := twoOf(t)
			l := mustLock(t, a.Mutex("n"), t.Context())
			time.Sleep(time.Minute)
			start := time.Now()
			if err := l.UnlockAfter(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
			wantErr(t, l.Err(), ErrNotHeld)
			wantErr(t, l.UnlockAfter(t.Context(), time.Hour), ErrNotHeld)
			wantErr(t, l.Unlock(t.Context()), ErrNotHeld)
			if closes {
				a.Close()
			}
			renews := h.renews.Load()
			next := mustLock(t, b.Mutex("n"), t.Context())
			if took := time.Since(start); took != time.Hour || next.Token() <= l.Token() {
				t.Errorf("closed: %v: the next was in after %s, with token %d after %d", closes, took, next.Token(), l.Token())
			}
			if h.renews.Load() != renews {
				t.Error("a hold without a lease was renewed")
			}
			mustUnlock(t, next)
			time.Sleep(time.Minute)
			if got := h.releases.Load(); !closes && got != 2 {
				t.Errorf("%d releases; want that of the lease, and that of the kept request when its time had passed", got)
			}
		})
	}
}

// The kind of hold does not matter: a permit stays taken, and readers stay together.
func TestUnlockAfterOfEachKind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, _ := twoOf(t)
		for what, m := range map[string]Mutex{"permit": a.Semaphore("s", 2), "reader": a.RWMutex("r").Read(), "fixed": a.Mutex("f", FixedLease(time.Minute)), "all": All(a.Mutex("x"), a.Mutex("y"))} {
			if err := mustLock(t, m, t.Context()).UnlockAfter(t.Context(), time.Hour); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		start := time.Now()
		mustLock(t, b.Semaphore("s", 2), t.Context())
		_, err := b.Semaphore("s", 2).TryLock(t.Context())
		wantErr(t, err, ErrHeld)
		mustUnlock(t, mustLock(t, b.RWMutex("r").Read(), t.Context()))
		for _, m := range []Mutex{b.RWMutex("r").Write(), b.Mutex("f"), b.Mutex("x"), b.Mutex("y")} {
			_, err := m.TryLock(t.Context())
			wantErr(t, err, ErrHeld)
		}
		if time.Since(start) != 0 {
			t.Error("that took time")
		}
		time.Sleep(time.Hour)
		for _, m := range []Mutex{b.Semaphore("s", 2), b.RWMutex("r").Write(), b.Mutex("f"), All(b.Mutex("x"), b.Mutex("y"))} {
			if _, err := m.TryLock(t.Context()); err != nil {
				t.Errorf("%s, afterwards: %v", m.Name(), err)
			}
		}
	})
}

// After an error that is not the end of the lease, it is held as before, and no part of All stays
// held for longer.
func TestUnlockAfterThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, h := twoOf(t)
		l := mustLock(t, a.Mutex("n"), t.Context())
		wantErr(t, l.UnlockAfter(t.Context(), 0), ErrInvalid)
		wantErr(t, l.UnlockAfter(t.Context(), day+1), ErrInvalid)
		h.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Name == "z" || r.Name == "n" {
				return driver.Grant{}, errors.New("no answer")
			}
			return h.Backend.Acquire(ctx, r)
		}
		if err := l.UnlockAfter(t.Context(), time.Hour); err == nil || l.Err() != nil {
			t.Errorf("UnlockAfter without an answer: %v; the lease: %v", err, l.Err())
		}
		h.acquire = nil
		both := mustLock(t, All(a.Mutex("y"), a.Mutex("z")), t.Context())
		h.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Name == "z" {
				return driver.Grant{}, errors.New("no answer")
			}
			return h.Backend.Acquire(ctx, r)
		}
		if err := both.UnlockAfter(t.Context(), time.Hour); err == nil || both.Err() != nil {
			t.Errorf("UnlockAfter of which a part has no answer: %v; the lease: %v", err, both.Err())
		}
		h.acquire = nil
		mustUnlock(t, both)
		mustUnlock(t, l)
		time.Sleep(time.Second)
		for _, m := range []Mutex{b.Mutex("n"), b.Mutex("y"), b.Mutex("z")} {
			if _, err := m.TryLock(t.Context()); err != nil {
				t.Errorf("%s: %v", m.Name(), err)
			}
		}
		gone := mustLock(t, a.Mutex("gone"), t.Context())
		if err := b.Break(t.Context(), "gone", gone.Token(), Force()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, gone.UnlockAfter(t.Context(), time.Hour), ErrLost)
		if !free(t, b, "gone") {
			t.Error("a lost lease left something")
		}
	})
}

// Three replicas have clocks that differ by a twentieth of the period, and each is late by as much
// now and then. Each period has one run.
func TestOncePerRunsOnceInEachPeriod(t *testing.T) {
	const periods = 20
	for _, period := range []time.Duration{time.Second, time.Minute, 10 * time.Minute, 24 * time.Hour} {
		bubble(t, func(t *testing.T) {
			cs, _ := candidates(t, 3)
			start, slack := time.Now(), min(period/20, 30*time.Second)
			var runs [periods]atomic.Int64
			var wg sync.WaitGroup
			for i, c := range cs {
				wg.Go(func() {
					for n := range periods {
						late := time.Duration(i) * slack / 2
						if n%2 == i%2 {
							late += slack / 2
						}
						time.Sleep(time.Until(start.Add(time.Duration(n)*period + late)))
						if _, err := OncePer(t.Context(), c.Mutex("job"), period, func(context.Context) error {
							runs[n].Add(1)
							time.Sleep(period / 100)
							return nil
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			for n := range runs {
				if got := runs[n].Load(); got != 1 {
					t.Errorf("period %d of %s: %d runs", n, period, got)
				}
			}
		})
	}
}

// The bounds that a refusal names are themselves allowed, and what is just outside is not.
func TestOncePerNamesItsBounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &hooked{Backend: newMemory(new(memory.Space)), caps: func(c *Capabilities) { c.MinTTL, c.MaxTTL, c.MaxFixed = 2*time.Second, time.Minute, time.Hour }}
		c := newOn(t, b)
		run := func(period time.Duration) error {
			_, err := OncePer(t.Context(), c.Mutex("job"), period, func(context.Context) error { return nil })
			return err
		}
		const want = "period of 0s; 2.223s to 1h1m0s are allowed here"
		if err := run(0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
		for period, ok := range map[time.Duration]bool{
			2223 * time.Millisecond: true, 2222 * time.Millisecond: false, time.Hour + time.Minute: true, time.Hour + time.Minute + time.Millisecond: false,
		} {
			if err := run(period); (err == nil) != ok || err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", period, err)
			}
			time.Sleep(2 * time.Hour)
		}
		err := mustLock(t, c.Mutex("n"), t.Context()).UnlockAfter(t.Context(), time.Second)
		if err == nil || !strings.Contains(err.Error(), "UnlockAfter of 1s; 2s to 1h0m0s") {
			t.Errorf("UnlockAfter: %v", err)
		}
		if _, err := c.Mutex("n", FixedLease(2*time.Hour)).TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "FixedLease of 2h0m0s; 2s to 1h0m0s") {
			t.Errorf("FixedLease: %v", err)
		}
	})
}

func TestOncePer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, h := twoOf(t)
		m, own := a.Mutex("job"), errors.New("own")
		fails := func(context.Context) error { return own }
		never := func(context.Context) error { t.Error("it ran"); return nil }
		for what, got := range map[string]func() (bool, error){
			"no mutex":    func() (bool, error) { return OncePer(t.Context(), nil, time.Hour, never) },
			"no function": func() (bool, error) { return OncePer(t.Context(), m, time.Hour, nil) },
			"no period":   func() (bool, error) { return OncePer(t.Context(), m, 0, never) },
			"two days":    func() (bool, error) { return OncePer(t.Context(), m, 2*day, never) },
			"no name":     func() (bool, error) { return OncePer(t.Context(), a.Mutex(""), time.Hour, never) },
		} {
			if ran, err := got(); ran || !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: ran %v, %v", what, ran, err)
			}
		}
		if ran, err := OncePer(t.Context(), m, time.Hour, fails); !ran || !errors.Is(err, own) {
			t.Errorf("ran %v, %v; want what it returned", ran, err)
		}
		if ran, err := OncePer(t.Context(), b.Mutex("job"), time.Hour, never); ran || err != nil {
			t.Errorf("within the hour: ran %v, %v", ran, err)
		}
		time.Sleep(time.Hour)
		start := time.Now() // it takes longer than the period
		if ran, err := OncePer(t.Context(), m, time.Minute, func(ctx context.Context) error { time.Sleep(time.Hour); return ctx.Err() }); !ran || err != nil || time.Since(start) != time.Hour {
			t.Errorf("ran %v, %v", ran, err)
		}
		if ran, err := OncePer(t.Context(), b.Mutex("job"), time.Minute, func(context.Context) error { return nil }); !ran || err != nil {
			t.Errorf("after a long run: ran %v, %v", ran, err)
		}
		time.Sleep(time.Hour)
		h.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Fixed {
				return driver.Grant{}, own
			}
			return h.Backend.Acquire(ctx, r)
		}
		if ran, err := OncePer(t.Context(), m, time.Hour, never); ran || !errors.Is(err, own) {
			t.Errorf("the time cannot be arranged: ran %v, %v", ran, err)
		}
		if !free(t, b, "job") {
			t.Error("the lock is held")
		}
	})
}

// What a backend cannot do is reported before anything is sent.
func TestOncePerWhereItCannotBe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &hooked{Backend: newMemory(new(memory.Space)), caps: func(c *Capabilities) { c.FixedOutlives = false }}
		c := newOn(t, b)
		l := mustLock(t, c.Mutex("n"), t.Context())
		before := b.acquires.Load()
		wantErr(t, l.UnlockAfter(t.Context(), time.Minute), ErrUnsupported)
		if err := l.Err(); err != nil {
			t.Errorf("the lease has ended: %v", err)
		}
		ran, err := OncePer(t.Context(), c.Mutex("job"), time.Minute, func(context.Context) error { t.Error("it ran"); return nil })
		wantErr(t, err, ErrUnsupported)
		if ran || b.acquires.Load() != before {
			t.Error("something was sent")
		}
	})
}

// The time of a fixed lease has a bound of its own, where the backend says so.
func TestFixedHasItsOwnBound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &hooked{Backend: newMemory(new(memory.Space)), caps: func(c *Capabilities) { c.MaxTTL, c.MaxFixed = time.Minute, 2*time.Hour }}
		c := newOn(t, b)
		for _, m := range []Mutex{c.Mutex("n", TTL(time.Hour)), c.Mutex("n", FixedLease(3*time.Hour))} {
			_, err := m.TryLock(t.Context())
			wantErr(t, err, ErrInvalid)
		}
		l := mustLock(t, c.Mutex("n", FixedLease(time.Hour)), t.Context())
		wantErr(t, l.UnlockAfter(t.Context(), 3*time.Hour), ErrInvalid)
		if err := l.UnlockAfter(t.Context(), 2*time.Hour); err != nil {
			t.Fatal(err)
		}
		if ran, err := OncePer(t.Context(), c.Mutex("job"), time.Hour, func(context.Context) error { return nil }); !ran || err != nil {
			t.Errorf("ran %v, %v", ran, err)
		}
	})
}

// If the service takes longer to answer than the lock is to stay held, it may say that the request
// for that time was lost: it has expired. The lease was not, and is released.
func TestUnlockAfterIsAnsweredAfterItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, h := twoOf(t)
		const d = time.Second
		answers := func(after time.Duration) {
			h.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				time.Sleep(after)
				return driver.Grant{}, driver.ErrLost
			}
		}
		l := mustLock(t, a.Mutex("n"), t.Context())
		answers(d)
		if err := l.UnlockAfter(t.Context(), d); err != nil {
			t.Errorf("UnlockAfter that is answered after its time: %v", err)
		}
		wantErr(t, l.Err(), ErrNotHeld)
		h.acquire = nil
		lost := mustLock(t, a.Mutex("n"), t.Context())
		if err := b.Break(t.Context(), "n", lost.Token(), Force()); err != nil {
			t.Fatal(err)
		}
		answers(d)
		wantErr(t, lost.UnlockAfter(t.Context(), d), ErrLost)
		h.acquire = nil
		early := mustLock(t, a.Mutex("n"), t.Context())
		answers(d - 1)
		wantErr(t, early.UnlockAfter(t.Context(), d), ErrLost)
		h.acquire = nil
		if !free(t, b, "n") {
			t.Error("UnlockAfter left something")
		}
	})
}

// If a part of All is lost, UnlockAfter releases the others.
func TestUnlockAfterOfWhatIsLostInPart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, _ := twoOf(t)
		both := mustLock(t, All(a.Mutex("y"), a.Mutex("z")), t.Context())
		part := b.Mutex("z")
		q, err := b.Inspect(t.Context(), part.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Break(t.Context(), part.Name(), q.Holders[0].Token, Force()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, both.UnlockAfter(t.Context(), time.Hour), ErrLost)
		time.Sleep(time.Second) // what was to keep y held is released in the background
		for _, name := range []string{"y", "z"} {
			if !free(t, b, name) {
				t.Errorf("%s is held", name)
			}
		}
	})
}

// A call that releases the lease while UnlockAfter arranges the time wins: UnlockAfter returns
// ErrNotHeld, and has left nothing held.
func TestUnlockAfterIsOvertaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, h := twoOf(t)
		l := mustLock(t, a.Mutex("n"), t.Context())
		h.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := h.Backend.Acquire(ctx, r)
			mustUnlock(t, l)
			return g, err
		}
		start := time.Now()
		wantErr(t, l.UnlockAfter(t.Context(), time.Hour), ErrNotHeld)
		mustUnlock(t, mustLock(t, b.Mutex("n"), t.Context()))
		if took := time.Since(start); took > time.Second {
			t.Errorf("it was free after %s", took)
		}
	})
}
