package adapt_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var shared = setUp{true, true, true}

// TestJoinsOfOtherClients: a join of another client is a member with a time of its own. It outlives
// the hold that it joined, and is renewed and released also by a client that has no record of it.
func TestJoinsOfOtherClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(true)
		a, _ := start(t, shared, s)
		b, _ := start(t, shared, s)
		later, _ := start(t, shared, s)
		hold := ask("x", 10*time.Second)
		get(t, a, hold)
		join := ask("x", time.Minute)
		join.Owner = hold.Owner
		get(t, b, join)
		has := func(r driver.Request, want time.Duration) {
			t.Helper()
			if d := s.has(r); d != want {
				t.Errorf("a member lasts for %s, want %s", d, want)
			}
		}
		time.Sleep(5 * time.Second)
		for _, c := range []struct {
			by   driver.Backend
			what string
		}{{b, "its client"}, {later, "another client"}} {
			time.Sleep(time.Second)
			if p := c.by.Renew(t.Context(), []driver.Request{join})[0]; p.Err != nil {
				t.Errorf("the renewal of a join by %s: %v", c.what, p.Err)
			}
			has(join, time.Minute)
		}
		has(hold, 3*time.Second)
		release(t, a, hold)
		has(join, time.Minute)
		if _, err := a.Acquire(t.Context(), ask("x", time.Second)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("a lock that a join keeps: %v", err)
		}
		release(t, later, join)
		get(t, a, ask("x", time.Second))
	})
}

// TestAJoinPassesTheLine: a join is granted at once, whatever waits, and whether it may wait or
// not.
func TestAJoinPassesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := start(t, shared, newShelf(true))
		hold := ask("x", time.Hour)
		get(t, b, hold)
		ctx, cancel := context.WithCancel(t.Context())
		waits := begin(ctx, b, wait("x", time.Hour))
		time.Sleep(100 * time.Millisecond)
		for _, join := range []driver.Request{ask("x", time.Hour), wait("x", time.Hour)} {
			join.Owner = hold.Owner
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := b.Acquire(ctx, join); err != nil {
				t.Errorf("a join, which waits: %t: %v", join.Wait, err)
			}
			cancel()
		}
		cancel()
		if err := <-waits; !errors.Is(err, driver.ErrHeld) {
			t.Error(err)
		}
	})
}

// TestReadersOfALine: when the first of several readers is granted, those behind it try at once,
// and so does one that does not wait, even if the service hangs for one of them.
func TestReadersOfALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(true)
		writer, _ := start(t, shared, s)
		b, c := start(t, shared, s)
		held := ask("x", time.Hour)
		get(t, writer, held)
		var waits []<-chan error
		for range 3 {
			r := wait("x", time.Hour)
			r.Mode = driver.Shared
			waits = append(waits, begin(t.Context(), b, r))
			synctest.Wait()
		}
		time.Sleep(100 * time.Millisecond)
		var calls atomic.Int32
		hangs := make(chan struct{})
		c.setGate(func(_ context.Context, executed bool) error {
			if !executed && calls.Add(1) == 2 {
				<-hangs
			}
			return nil
		})
		release(t, writer, held)
		synctest.Wait()
		if err := <-waits[0]; err != nil || calls.Load() != 2 {
			t.Fatalf("the first reader: %v, after %d calls", err, calls.Load())
		}
		r := ask("x", time.Hour)
		r.Mode = driver.Shared
		get(t, b, r)
		close(hangs)
		synctest.Wait()
		for _, done := range waits[1:] {
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Fatal("a reader waits, though others have the lock")
			}
		}
		if n := calls.Load(); n != 4 {
			t.Errorf("%d calls for 4 readers", n)
		}
	})
}
