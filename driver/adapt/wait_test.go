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

// TestManyWaitersCostAsMuchAsOne: only the first of the line tries, and there is one watch.
func TestManyWaitersCostAsMuchAsOne(t *testing.T) {
	for _, wakes := range []bool{true, false} {
		cost := func(waiters int) (calls int) {
			synctest.Test(t, func(t *testing.T) {
				s, u := newShelf(true), setUp{true, wakes, false}
				holder, _ := start(t, u, s)
				b, c := start(t, u, s)
				get(t, holder, ask("x", time.Hour))
				ctx, cancel := context.WithCancel(t.Context())
				var all []<-chan error
				for range waiters {
					all = append(all, begin(ctx, b, wait("x", time.Hour)))
				}
				time.Sleep(10 * time.Second)
				calls = c.sent()
				if n := s.watched(); wakes && n != 1 {
					t.Errorf("%d watches for %d waiters", n, waiters)
				}
				cancel()
				for _, done := range all {
					if err := <-done; !errors.Is(err, driver.ErrHeld) || !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if n := s.watched(); n != 0 {
					t.Errorf("%d watches are left", n)
				}
			})
			return calls
		}
		one, many := cost(1), cost(5000)
		if most := 10 * one; many > most || wakes && one > 40 {
			t.Errorf("wakes %t: in 10s one waiter made %d calls, 5000 made %d", wakes, one, many)
		}
	}
}

// TestTheLineIsInOrder: each release of the client hands the lock to the next in the line, without
// a pause.
func TestTheLineIsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := start(t, setUp{true, false, false}, newShelf(true))
		held := ask("x", time.Hour)
		get(t, b, held)
		var rs []driver.Request
		var all []<-chan error
		for range 20 {
			r := wait("x", time.Hour)
			rs, all = append(rs, r), append(all, begin(t.Context(), b, r))
			synctest.Wait()
		}
		for i, done := range all {
			began := time.Now()
			release(t, b, held)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d != 0 {
				t.Fatalf("handed over after %s", d)
			}
			for _, behind := range all[i+1:] {
				select {
				case err := <-behind:
					t.Fatalf("one behind returned %v", err)
				default:
				}
			}
			held = rs[i]
		}
	})
}

// TestWaitersAreWoken: by the watch at a release of another client, and at the end of the holder's
// time without one.
func TestWaitersAreWoken(t *testing.T) {
	for _, u := range setUps {
		synctest.Test(t, func(t *testing.T) {
			s := newShelf(u.outlives)
			other, _ := start(t, u, s)
			b, _ := start(t, u, s)
			held := ask("x", 10*time.Second)
			get(t, other, held)
			next := wait("x", time.Hour)
			done := begin(t.Context(), b, next)
			time.Sleep(3200 * time.Millisecond)
			began := time.Now()
			release(t, other, held)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			most := 75 * time.Millisecond
			if u.wakes {
				most = 0
			}
			if d := time.Since(began); d > most {
				t.Errorf("%s: woken %s after the release", u, d)
			}
			release(t, b, next)
			get(t, other, ask("x", 300*time.Millisecond)) // expires
			began = time.Now()
			get(t, b, wait("x", time.Hour))
			if d := time.Since(began); d < 300*time.Millisecond || d > 325*time.Millisecond {
				t.Errorf("%s: the lock was taken after %s, and the holder's TTL is 300ms", u, d)
			}
		})
	}
}

// TestTheFirstLeaves: when the first of the line leaves, the next one tries.
func TestTheFirstLeaves(t *testing.T) {
	for _, wakes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s, u := newShelf(true), setUp{true, wakes, false}
			other, _ := start(t, u, s)
			b, _ := start(t, u, s)
			held := ask("x", time.Hour)
			get(t, other, held)
			ctx, cancel := context.WithCancel(t.Context())
			first := begin(ctx, b, wait("x", time.Hour))
			synctest.Wait()
			second := begin(t.Context(), b, wait("x", time.Hour))
			synctest.Wait()
			cancel()
			if err := <-first; !driver.HasWaited(err) {
				t.Error(err)
			}
			release(t, other, held)
			select {
			case err := <-second:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Errorf("wakes %t: the second waits on, and the lock is free", wakes)
			}
		})
	}
}

// TestTryBesideTheLine: a request that does not wait is held, without a call, while others of its
// client wait, and reports an outage.
func TestTryBesideTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u := newShelf(true), setUp{true, true, false}
		other, _ := start(t, u, s)
		b, c := start(t, u, s)
		held := ask("x", time.Hour)
		held.Label = "the holder"
		get(t, other, held)
		ctx, cancel := context.WithCancel(t.Context())
		done := begin(ctx, b, wait("x", time.Hour))
		time.Sleep(100 * time.Millisecond)
		calls := c.sent()
		_, err := b.Acquire(t.Context(), ask("x", time.Hour))
		by := (*driver.HeldError)(nil)
		if !errors.As(err, &by) || by.Label != "the holder" || c.sent() != calls {
			t.Errorf("%v after %d calls", err, c.sent()-calls)
		}
		c.setGate(func(context.Context, bool) error { return errDown })
		time.Sleep(5 * time.Second) // the waiter has seen that
		if _, err = b.Acquire(t.Context(), ask("x", time.Hour)); !errors.Is(err, errDown) {
			t.Error(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, errDown) || !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrHeld) {
			t.Errorf("the waiter: %v", err)
		}
	})
}

// TestAWaitOutlastsAnOutage: a wait goes on for a TTL after the last answer, whether calls fail or
// hang. The first Try reports.
func TestAWaitOutlastsAnOutage(t *testing.T) {
	for _, hang := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s, u := newShelf(true), setUp{true, true, false}
			other, _ := start(t, u, s)
			b, c := start(t, u, s)
			held := ask("x", time.Hour)
			get(t, other, held)
			fail := func() (heal func()) {
				if hang {
					return c.hang(false)
				}
				c.setGate(func(context.Context, bool) error { return context.DeadlineExceeded })
				return func() { c.setGate(nil) }
			}
			done := begin(t.Context(), b, wait("x", time.Minute))
			time.Sleep(time.Second)
			heal := fail()
			time.Sleep(50 * time.Second)
			heal()
			release(t, other, held)
			if err := <-done; err != nil {
				t.Fatalf("hang %t: %v", hang, err)
			}
			y := ask("y", time.Hour)
			get(t, other, y)
			done = begin(t.Context(), b, wait("y", time.Minute))
			time.Sleep(time.Second)
			defer fail()()
			began := time.Now()
			if err := <-done; err == nil || driver.Refused(err) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) < 59*time.Second || time.Since(began) > 70*time.Second {
				t.Errorf("hang %t: after %s: %v", hang, time.Since(began), err)
			}
			began = time.Now()
			_, err := b.Acquire(t.Context(), wait("z", time.Minute))
			if err == nil || driver.Refused(err) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
				t.Errorf("hang %t: the first Try: %v", hang, err)
			}
		})
	}
}

// TestWatchesBeginAgain: after an error of the watch, and a wake-up that was missed meanwhile.
func TestWatchesBeginAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u := newShelf(true), setUp{true, true, false}
		other, _ := start(t, u, s)
		b, c := start(t, u, s)
		held := ask("x", time.Hour)
		get(t, other, held)
		var calls atomic.Int32
		c.setGate(func(_ context.Context, executed bool) error {
			if !executed && calls.Add(1) > 1 { // all but the first Try
				return errDown
			}
			return nil
		})
		done := begin(t.Context(), b, wait("x", time.Hour))
		time.Sleep(10 * time.Second)
		c.setGate(nil)
		time.Sleep(3 * time.Second)
		if s.watched() != 1 {
			t.Fatal("the watch was not begun again")
		}
		began := time.Now()
		release(t, other, held)
		if err := <-done; err != nil || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// TestAReleaseBeforeTheWatch: a release between the first Try and the beginning of the watch is
// found once the watch is ready.
func TestAReleaseBeforeTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u := newShelf(true), setUp{true, true, false}
		other, _ := start(t, u, s)
		b, c := start(t, u, s)
		held := ask("x", time.Hour)
		get(t, other, held)
		var calls atomic.Int32
		c.setGate(func(_ context.Context, executed bool) error {
			if !executed && calls.Add(1) == 2 { // the Watch
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		})
		began := time.Now()
		done := begin(t.Context(), b, wait("x", time.Hour))
		synctest.Wait()
		release(t, other, held)
		if err := <-done; err != nil || time.Since(began) != 100*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// TestOneTryAtATime: a Try that ignores the end of its context delays the next one of its request.
func TestOneTryAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u := newShelf(true), setUp{true, false, false}
		other, _ := start(t, u, s)
		b, c := start(t, u, s)
		held := ask("x", time.Hour)
		get(t, other, held)
		done := begin(t.Context(), b, wait("x", time.Minute))
		time.Sleep(time.Second)
		var underWay, most atomic.Int32
		c.setGate(func(_ context.Context, executed bool) error {
			if !executed {
				most.Store(max(most.Load(), underWay.Add(1)))
				time.Sleep(12 * time.Second)
				underWay.Add(-1)
			}
			return nil
		})
		time.Sleep(40 * time.Second)
		c.setGate(nil)
		release(t, other, held)
		if err := <-done; err != nil || most.Load() != 1 {
			t.Errorf("%d at a time: %v", most.Load(), err)
		}
		time.Sleep(time.Minute)
	})
}
