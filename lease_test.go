package dlock

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/internal/hold"
)

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func TestUnlockTwice(t *testing.T) {
	c, _ := newHooked(t)
	l := mustLock(t, c.Mutex("a"), t.Context())
	mustUnlock(t, l)
	next := mustLock(t, c.Mutex("a"), t.Context())
	wantErr(t, l.Unlock(t.Context()), ErrNotHeld)
	wantErr(t, l.Err(), ErrNotHeld)
	wantErr(t, l.Renew(t.Context()), ErrNotHeld)
	if next.Err() != nil || free(t, c, "a") {
		t.Error("the second Unlock touched the successor")
	}
	if isLost(l) {
		t.Error("Unlock closed Lost")
	}
}

func TestUnlockUnderAContextThatHasEnded(t *testing.T) {
	c, _ := newHooked(t)
	ctx, cancel := context.WithCancel(t.Context())
	l := mustLock(t, c.Mutex("a"), ctx)
	cancel()
	mustUnlock(t, l)
	if !free(t, c, "a") {
		t.Error("not released")
	}
	l = mustLock(t, c.Mutex("a"), t.Context())
	if err := l.Unlock(ctx); err != nil || !free(t, c, "a") {
		t.Errorf("%v, or not released", err)
	}
}

func TestUnlockIsBoundedAndGoesOnInTheBackground(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Hour))
		var cut atomic.Bool
		cut.Store(true)
		b.release = func(ctx context.Context, r driver.Request) error {
			if cut.Load() {
				return hang(ctx)
			}
			return b.Backend.Release(ctx, r)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		over, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := l.Unlock(over)
		if d := time.Since(start); d > grace {
			t.Errorf("Unlock took %s", d)
		}
		wantErr(t, err, context.Canceled)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("the deadline of the clean-up looks like the caller's:", err)
		}
		if errors.Is(err, ErrLost) || errors.Is(err, ErrNotHeld) {
			t.Error("an unknown outcome looks like an answer:", err)
		}
		wantErr(t, l.Unlock(t.Context()), ErrNotHeld)
		time.Sleep(time.Minute)
		cut.Store(false)
		time.Sleep(grace + 2*longestPause)
		if !free(t, c, "a") {
			t.Error("not released when the backend came back")
		}
	})
}

func TestAReleaseWithUnknownOutcomeIsSettled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		first, dropped := true, errors.New("reply lost")
		b.release = func(ctx context.Context, r driver.Request) error {
			err := b.Backend.Release(ctx, r)
			if first {
				first, err = false, dropped
			}
			return err
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		wantErr(t, l.Unlock(t.Context()), dropped)
		next := mustLock(t, c.Mutex("a"), t.Context())
		synctest.Wait()
		if next.Err() != nil || b.releases.Load() != 2 {
			t.Errorf("%v, %d releases", next.Err(), b.releases.Load())
		}
	})
}

func TestABadReleaseHoldsUpNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		var fail atomic.Bool
		fail.Store(true)
		b.release = func(ctx context.Context, r driver.Request) error {
			if r.Name == "bad" || fail.Load() {
				return errors.New("no")
			}
			return b.Backend.Release(ctx, r)
		}
		bad, good := mustLock(t, c.Mutex("bad"), t.Context()), mustLock(t, c.Mutex("good"), t.Context())
		bad.Unlock(t.Context())
		good.Unlock(t.Context())
		fail.Store(false)
		time.Sleep(2 * longestPause)
		if !free(t, c, "good") {
			t.Error("good waits for bad")
		}
	})
}

func TestFixedLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		start := time.Now()
		l := mustLock(t, c.Mutex("a", FixedLease(10*time.Second)), t.Context())
		if got := l.Until().Sub(start); got != 10*time.Second-hold.Margin(10*time.Second) {
			t.Errorf("trusted for %s", got)
		}
		time.Sleep(9 * time.Second)
		if l.Err() != nil || b.renews.Load() != 0 {
			t.Errorf("%v, %d renewals; want none", l.Err(), b.renews.Load())
		}
		if err := l.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if l.Err() != nil {
			t.Error("Renew did not start it again:", l.Err())
		}
		<-l.Lost()
		if d := time.Since(start); d > 19*time.Second {
			t.Errorf("ended after %s", d)
		}
		wantErr(t, l.Unlock(t.Context()), ErrLost)
		wantErr(t, l.Renew(t.Context()), ErrLost)
	})
}

func TestRenewThatFailsChangesNothing(t *testing.T) {
	c, b := newHooked(t)
	down := errors.New("down")
	b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal { return []driver.Renewal{{Err: down}} }
	l := mustLock(t, c.Mutex("a"), t.Context())
	until := l.Until()
	wantErr(t, l.Renew(t.Context()), down)
	if l.Err() != nil || l.Until() != until {
		t.Error("an unknown outcome changed the lease")
	}
	b.renew = nil
	if err := l.Renew(t.Context()); err != nil || !l.Until().After(until) {
		t.Errorf("%v, until %s", err, l.Until())
	}
}

func TestContextEndsAsItSays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Second))
		m := c.Mutex("a")

		l := mustLock(t, m, t.Context())
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := l.Context(parent)
		cancel(io.EOF)
		if context.Cause(ctx) != io.EOF {
			t.Error("parent's cause:", context.Cause(ctx))
		}
		synctest.Wait()
		if n := len(l.shares[0].contexts); n != 0 {
			t.Errorf("%d contexts kept after their parent ended", n)
		}
		ctx = l.Context(t.Context())
		mustUnlock(t, l)
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrLost) {
			t.Error("after Unlock:", ctx.Err(), context.Cause(ctx))
		}
		if l.Context(t.Context()).Err() == nil {
			t.Error("a context of a lease that has ended is alive")
		}

		b.renew = hungRenew
		l = mustLock(t, m, t.Context())
		ctx = l.Context(t.Context())
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), ErrLost)
		_, err := m.Lock(ctx)
		wantErr(t, err, ErrLost)
		wantErr(t, err, context.Canceled)
		wantErr(t, context.Cause(l.Context(t.Context())), ErrLost)
	})
}

func TestLossNeverClosesAReleasedLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Second))
		b.renew = hungRenew
		outer := mustLock(t, c.Mutex("a"), t.Context())
		inner := mustLock(t, c.Mutex("a"), outer.Context(t.Context()))
		watched, seen := mustLock(t, c.Mutex("a"), outer.Context(t.Context())), false
		lost := watched.Lost()
		mustUnlock(t, inner)
		mustUnlock(t, watched)
		<-outer.Lost()
		synctest.Wait()
		select {
		case <-lost:
			seen = true
		default:
		}
		if isLost(inner) || isLost(watched) || seen {
			t.Error("the inner lease was released before the loss")
		}
	})
}

func TestALeaseReleasedMeanwhileIsNotLost(t *testing.T) {
	for what, ask := range map[string]func(*Lease) error{
		"Renew": func(l *Lease) error { return l.Renew(context.Background()) },
		"Err":   (*Lease).Err,
	} {
		ahead := time.Duration(0)
		c, b := newHooked(t, clock(func() time.Time { return asleep(-ahead) }))
		l := mustLock(t, c.Mutex("a"), t.Context())
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			mustUnlock(t, l)
			return b.Backend.Renew(ctx, rs)
		}
		ahead = time.Hour // makes Err query the backend
		err := ask(l)
		if wantErr(t, err, ErrNotHeld); errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAFixedLeaseEndsOnTimeAlsoIfTheBackendKeepsItLonger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := b.Backend.Acquire(ctx, r)
			g.TTL = time.Minute
			return g, err
		}
		start := time.Now()
		l := mustLock(t, c.Mutex("a", FixedLease(5*time.Second)), t.Context())
		<-l.Lost()
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("ended after %s", d)
		}
	})
}

// A fixed lease ends for its holder a margin before its time, and for others at its time.
func TestAFixedLeaseStandsUntilItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const d = time.Minute
		space := new(memory.Space)
		b := &hooked{Backend: newMemory(space)}
		c, other := newOn(t, b), newOn(t, newMemory(space))
		start := time.Now()
		l := mustLock(t, c.Mutex("a", FixedLease(d)), t.Context())
		<-l.Lost()
		if learned := time.Since(start); learned != d-hold.Margin(d) {
			t.Errorf("its holder learns of the end after %s", learned)
		}
		if _, err := c.Mutex("a").Lock(WithOwner(t.Context(), mustParse(t, l.Owner().String()))); !errors.Is(err, ErrLost) {
			t.Errorf("a join by the client that was notified: %v", err)
		}
		if n := b.releases.Load(); n != 0 {
			t.Errorf("%d releases before its time has passed", n)
		}
		next := mustLock(t, other.Mutex("a"), t.Context())
		if in := time.Since(start); in != d {
			t.Errorf("the next is in after %s", in)
		}
		time.Sleep(time.Second)
		if n := b.releases.Load(); n != 1 {
			t.Errorf("%d releases when its time has passed", n)
		}
		mustUnlock(t, next)
	})
}

// TestAFixedLeaseStandsAsLongAsTheServiceCounts: the service counts from when the request arrives,
// and the client that ends the lease does not do so before.
func TestAFixedLeaseStandsAsLongAsTheServiceCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const d, under = time.Minute, 3 * time.Second // the way to the service takes that long
		space := new(memory.Space)
		b := &hooked{Backend: newMemory(space)}
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			sent := time.Now()
			time.Sleep(under)
			g, err := b.Backend.Acquire(ctx, r)
			g.SentAt = sent
			return g, err
		}
		c, other := newOn(t, b), newOn(t, newMemory(space))
		for what, keep := range map[string]func(){
			"a fixed lease": func() { mustLock(t, c.Mutex("a", FixedLease(d)), t.Context()) },
			"UnlockAfter": func() {
				if err := mustLock(t, c.Mutex("a"), t.Context()).UnlockAfter(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			},
		} {
			keep()
			granted := time.Now()
			next := mustLock(t, other.Mutex("a"), t.Context())
			if in := time.Since(granted); in != d {
				t.Errorf("%s: the next is in %s after the service began to count, want %s", what, in, d)
			}
			mustUnlock(t, next)
			time.Sleep(time.Second) // what the client has to release is released
		}
	})
}

func TestThePlannedEndOfAFixedLeaseIsNoWarning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		c := newOn(t, newMemory(nil), Logger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		fixed := mustLock(t, c.Mutex("a", FixedLease(time.Second)), t.Context())
		<-fixed.Lost()
		synctest.Wait()
		if s := log.String(); strings.Contains(s, "WARN") || !strings.Contains(s, "level=DEBUG msg=\"dlock: lease lost\"") {
			t.Error(s)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		c.Break(t.Context(), "a", l.Token(), Force())
		<-l.Lost()
		synctest.Wait()
		if s := log.String(); !strings.Contains(s, "level=WARN msg=\"dlock: lease lost\"") {
			t.Error(s)
		}
	})
}

// slowToLeave is a parent from which a context is slow to come away when it ends.
type slowToLeave struct{ context.Context }

// Done is never closed.
func (slowToLeave) Done() <-chan struct{} { return make(chan struct{}) }

// AfterFunc is what package context asks such a parent for.
func (slowToLeave) AfterFunc(func()) (stop func() bool) {
	return func() bool {
		time.Sleep(time.Second)
		return true
	}
}

func TestAllLeasesLearnOfALossBeforeTheHoldIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		var second atomic.Pointer[Lease]
		var early atomic.Bool
		b.release = func(ctx context.Context, r driver.Request) error {
			early.Store(!isLost(second.Load()))
			return b.Backend.Release(ctx, r)
		}
		m := c.Mutex("a", FixedLease(time.Minute))
		first := mustLock(t, m, t.Context())
		second.Store(mustLock(t, m, first.Context(slowToLeave{context.Background()})))
		time.Sleep(2 * time.Minute)
		if b.releases.Load() == 0 {
			t.Fatal("it was not released")
		}
		if early.Load() {
			t.Error("the hold was released before one of its leases had learned of the loss")
		}
	})
}
