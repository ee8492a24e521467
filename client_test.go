package dlock

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

func TestCloseSettlesReleasesUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		var cut atomic.Bool
		cut.Store(true)
		b.release = func(ctx context.Context, r driver.Request) error {
			if cut.Load() {
				return hang(ctx)
			}
			return b.Backend.Release(ctx, r)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		over, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		wantErr(t, l.Unlock(over), context.DeadlineExceeded)
		synctest.Wait() // the background hangs in its first attempt
		cut.Store(false)
		n := b.releases.Load()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if b.releases.Load() == n {
			t.Error("Close did not send the release again")
		}
	})
}

func TestCloseWaitsForAnUnlockUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		entered, goOn := make(chan struct{}), make(chan struct{})
		b.release = func(ctx context.Context, r driver.Request) error {
			close(entered)
			<-goOn
			return b.Backend.Release(ctx, r)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		unlocked, closed := make(chan error), make(chan error, 1)
		go func() { unlocked <- l.Unlock(t.Context()) }()
		<-entered
		go func() { closed <- c.Close() }()
		synctest.Wait()
		close(goOn)
		if err := <-unlocked; err != nil {
			t.Error("Unlock:", err)
		}
		if err := <-closed; err != nil {
			t.Error("Close:", err)
		}
	})
}

func TestAGrantThatRacesWithCloseIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		granted, goOn := make(chan struct{}), make(chan struct{})
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := b.Backend.Acquire(context.WithoutCancel(ctx), r)
			close(granted)
			<-goOn
			return g, err
		}
		res := make(chan error)
		go func() {
			_, err := c.Mutex("a").Lock(t.Context())
			res <- err
		}()
		<-granted
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		close(goOn)
		wantErr(t, <-res, ErrClosed)
		<-closed
		if b.releases.Load() != 1 {
			t.Errorf("%d releases; want one", b.releases.Load())
		}
	})
}

func TestCloseIsBoundedWhateverTheBackendDoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		heal := make(chan struct{})
		defer close(heal)
		c, b := newHooked(t)
		for range 100 {
			mustLock(t, c.Mutex(driver.NewID().String()), t.Context())
		}
		b.release = func(context.Context, driver.Request) error { <-heal; return nil }
		b.acquire = func(context.Context, driver.Request) (driver.Grant, error) { <-heal; return driver.Grant{}, io.EOF }
		go c.Mutex("x").Lock(t.Context())
		synctest.Wait()
		start := time.Now()
		err := c.Close()
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("Close took %s", d)
		}
		if err == nil {
			t.Error("holds could not be released, and Close returned no error")
		}
	})
}

func TestCloseReleasesWakesAndLeaksNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		c, b := newHooked(t)
		l := mustLock(t, c.Mutex("a"), t.Context())
		ctx, lost := l.Context(t.Context()), l.Lost()
		waiter := make(chan error)
		go func() {
			_, err := c.Mutex("a").Lock(t.Context())
			waiter <- err
		}()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		wantErr(t, <-waiter, ErrClosed)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error("again:", err)
		}
		wantErr(t, context.Cause(ctx), ErrClosed)
		select {
		case <-lost:
			t.Error("Close closed Lost")
		default:
		}
		wantErr(t, l.Unlock(t.Context()), ErrClosed)
		wantErr(t, l.Err(), ErrClosed)
		_, err := c.Mutex("a").Lock(t.Context())
		wantErr(t, err, ErrClosed)
		_, err = c.Mutex("a").Lock(context.WithoutCancel(ctx))
		wantErr(t, err, ErrClosed)
		_, err = c.Inspect(t.Context(), "a")
		wantErr(t, err, ErrClosed)
		wantErr(t, c.Break(t.Context(), "a", 1), ErrClosed)
		// the driver removes the waiter itself
		if n := b.acquires.Load() - b.releases.Load(); n != 0 && n != 1 {
			t.Errorf("%d requests not released", n)
		}
		synctest.Wait()
		if n := goroutinesLeft(before) - before; n > 0 {
			t.Errorf("%d goroutines left", n)
		}
	})
}

func TestFixedLeasesOverClose(t *testing.T) {
	for _, outlives := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			space := new(memory.Space)
			b := &hooked{Backend: newMemory(space), caps: func(c *driver.Capabilities) { c.FixedOutlives = outlives }}
			c, other := newOn(t, b), newOn(t, newMemory(space))
			l := mustLock(t, c.Mutex("a", FixedLease(time.Hour)), t.Context())
			mustLock(t, c.Mutex("b"), t.Context())
			c.Close()
			wantErr(t, l.Err(), ErrClosed)
			if free(t, other, "a") == outlives || !free(t, other, "b") {
				t.Errorf("FixedOutlives %t: after Close the fixed lease is free: %t", outlives, free(t, other, "a"))
			}
			if outlives {
				mustUnlock(t, mustLock(t, other.Mutex("a"), t.Context()))
			}
		})
	}
}

func TestTheDefaultTTLIsOneThatTheBackendKeeps(t *testing.T) {
	for _, tt := range []struct {
		least, most time.Duration
		opts        []Option
		want        time.Duration
	}{
		{0, 0, nil, defaultTTL},
		{0, 28 * time.Second, nil, 28 * time.Second},
		{time.Minute, 0, nil, time.Minute},
		{0, 28 * time.Second, []Option{TTL(10 * time.Second)}, 10 * time.Second},
		{0, 28 * time.Second, []Option{TTL(30 * time.Second)}, 0},
	} {
		b := &hooked{Backend: newMemory(nil), caps: func(c *driver.Capabilities) { c.MinTTL, c.MaxTTL = tt.least, tt.most }}
		c, err := New(b, tt.opts...)
		if tt.want == 0 {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "28s") {
				t.Errorf("a TTL over MaxTTL: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if l := mustLock(t, c.Mutex("a"), t.Context()); l.shares[0].held.Request().TTL != tt.want {
			t.Errorf("%+v: %s", tt, l.shares[0].held.Request().TTL)
		}
		if _, err := c.Mutex("b", FixedLease(day)).TryLock(t.Context()); tt.most > 0 && !errors.Is(err, ErrInvalid) {
			t.Errorf("a fixed lease over MaxTTL: %v", err)
		}
		c.Close()
	}
}

func TestListReturnsTheNamesInUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		space := new(memory.Space)
		c := newOn(t, newMemory(space))
		if names, err := c.List(t.Context()); names != nil || err != nil {
			t.Errorf("of nothing: %q, %v", names, err)
		}
		for _, name := range []string{"b", "c", "a"} {
			mustLock(t, c.Mutex(name), t.Context())
		}
		mustUnlock(t, mustLock(t, c.Mutex("gone"), t.Context()))
		waits, stop := context.WithCancel(t.Context())
		go newOn(t, newMemory(space)).Mutex("b").Lock(waits)
		synctest.Wait()
		if names, err := c.List(t.Context()); !slices.Equal(names, []string{"a", "b", "c"}) || err != nil {
			t.Errorf("%q, %v", names, err)
		}
		stop()
		synctest.Wait()
		c.Close()
		_, err := c.List(t.Context())
		wantErr(t, err, ErrClosed)
	})
}

// listed is a backend whose List is f.
type listed struct {
	*hooked
	f func(context.Context) ([]string, error)
}

func (b listed) List(ctx context.Context) ([]string, error) { return b.f(ctx) }

func TestListSaysWhyNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t) // which has no List
		_, err := c.List(t.Context())
		wantErr(t, err, ErrUnsupported)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.List(over)
		wantErr(t, err, context.Canceled)
		c = newOn(t, listed{b, func(ctx context.Context) ([]string, error) { return []string{"half"}, hang(ctx) }})
		start := time.Now()
		names, err := c.List(t.Context())
		if took := time.Since(start); names != nil || err == nil || errors.Is(err, context.DeadlineExceeded) || took > 11*time.Second {
			t.Errorf("a backend that does not answer: %q, %v after %s", names, err, took)
		}
		c = newOn(t, listed{b, func(context.Context) ([]string, error) { return nil, io.EOF }})
		_, err = c.List(t.Context())
		wantErr(t, err, io.EOF)
	})
}
