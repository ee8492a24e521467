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

// TestCallsThatIgnoreTheirContext: the caller returns within 100 ms, and the answer that comes
// later counts.
func TestCallsThatIgnoreTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(true)
		b, c := start(t, setUp{true, false, false}, s)
		r := ask("x", time.Minute)
		hangs := func(d time.Duration) {
			c.setGate(func(_ context.Context, executed bool) error {
				if !executed {
					time.Sleep(d)
				}
				return nil
			})
		}
		within := func(what string, call func(ctx context.Context) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 1100*time.Millisecond {
				t.Errorf("%s returned after %s: %v", what, time.Since(began), err)
			}
		}
		hangs(1500 * time.Millisecond)
		within("Acquire", func(ctx context.Context) error { _, err := b.Acquire(ctx, r); return err })
		within("Inspect", func(ctx context.Context) error { _, err := b.Inspect(ctx, "x"); return err })
		if s.holder("x") != r.ID {
			t.Fatal("the late Try has not taken the lock")
		}
		c.setGate(nil)
		r.Uncertain = true
		release(t, b, r) // which knows that it was granted
		r = ask("x", time.Minute)
		get(t, b, r)
		hangs(1500 * time.Millisecond)
		within("Renew", func(ctx context.Context) error { return b.Renew(ctx, []driver.Request{r})[0].Err })
		within("Release", func(ctx context.Context) error { return b.Release(ctx, r) })
		time.Sleep(time.Second)
		c.setGate(nil)
		release(t, b, r) // again: the first copy has done it
	})
}

// TestReleaseOfAnUnknownTry: the release waits until the Try has returned. If the Try was refused,
// the release makes no call.
func TestReleaseOfAnUnknownTry(t *testing.T) {
	for _, held := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s, u := newShelf(true), setUp{true, false, false}
			other, _ := start(t, u, s)
			b, c := start(t, u, s)
			if held {
				get(t, other, ask("x", time.Hour))
			}
			c.setGate(func(_ context.Context, executed bool) error {
				if executed {
					time.Sleep(time.Second)
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			r := ask("x", time.Minute)
			_, err := b.Acquire(ctx, r)
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrHeld) {
				t.Error(err)
			}
			c.setGate(nil)
			r.Uncertain = true
			began, calls, want := time.Now(), c.sent(), 1
			if held {
				want = 0
			}
			if err := b.Release(t.Context(), r); errors.Is(err, driver.ErrLost) != held {
				t.Error(err)
			}
			if d := time.Since(began); d != 500*time.Millisecond || c.sent() != calls+want {
				t.Errorf("after %s and %d calls", d, c.sent()-calls)
			}
			if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("a copy of the request: %v", err)
			}
		})
	}
}

// TestALateGrantIsReleased: a Try that returns after the release of its request takes the lock of
// a service without tombstones, and it is released again.
func TestALateGrantIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(true)
		b, c := start(t, setUp{true, false, false}, s)
		var calls atomic.Int32
		c.setGate(func(_ context.Context, executed bool) error {
			if !executed && calls.Add(1) == 1 { // the Try
				time.Sleep(10 * time.Second)
				s.mu.Lock()
				clear(s.dead)
				s.mu.Unlock()
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := ask("x", time.Minute)
		if _, err := b.Acquire(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		r.Uncertain = true
		began := time.Now()
		if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.Sleep(11 * time.Second)
		if s.holder("x") == r.ID {
			t.Error("the late grant still stands")
		}
	})
}

// TestReleasesThatCostNoCall: of a request that was refused, or whose wait ended while no Try was
// under way.
func TestReleasesThatCostNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u := newShelf(true), setUp{true, true, false}
		other, _ := start(t, u, s)
		b, c := start(t, u, s)
		get(t, other, ask("x", time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := wait("x", time.Minute)
		if _, err := b.Acquire(ctx, r); !driver.HasWaited(err) {
			t.Error(err)
		}
		calls := c.sent()
		if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) || c.sent() != calls {
			t.Errorf("%d calls: %v", c.sent()-calls, err)
		}
	})
}

// TestARepeatedRelease: an ErrLost after a release whose reply was lost is success, until the hold
// can have expired.
func TestARepeatedRelease(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, c := start(t, setUp{true, false, false}, newShelf(true))
			r := ask("x", time.Minute)
			get(t, b, r)
			c.setGate(func(_ context.Context, executed bool) error {
				if executed {
					return errDown
				}
				return nil
			})
			if err := b.Release(t.Context(), r); !errors.Is(err, errDown) {
				t.Error(err)
			}
			c.setGate(nil)
			if late {
				time.Sleep(time.Minute)
			}
			if err := b.Release(t.Context(), r); errors.Is(err, driver.ErrLost) != late || err != nil && !late {
				t.Errorf("late %t: %v", late, err)
			}
		})
	}
}

// TestARepeatedReleaseOfALostHold: no copy of the release can have removed a hold that a renewal
// found lost.
func TestARepeatedReleaseOfALostHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(true)
		b, c := start(t, setUp{true, false, false}, s)
		r := ask("x", time.Minute)
		get(t, b, r)
		s.mu.Lock()
		clear(s.holds)
		s.mu.Unlock()
		if err := b.Renew(t.Context(), []driver.Request{r})[0].Err; !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
		c.setGate(func(_ context.Context, executed bool) error {
			if executed {
				return errDown
			}
			return nil
		})
		if err := b.Release(t.Context(), r); !errors.Is(err, errDown) {
			t.Error(err)
		}
		c.setGate(nil)
		if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("repeated: %v", err)
		}
	})
}

// TestATryWithoutAReply: what a Try took is released by Release or Close, although its reply was
// lost.
func TestATryWithoutAReply(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newShelf(true)
			b, c := start(t, setUp{true, false, false}, s)
			c.setGate(func(_ context.Context, executed bool) error {
				if executed {
					return errDown
				}
				return nil
			})
			r := ask("x", time.Hour)
			if _, err := b.Acquire(t.Context(), r); !errors.Is(err, errDown) || s.holder("x") != r.ID {
				t.Fatalf("holder %v, %v", s.holder("x"), err)
			}
			c.setGate(nil)
			if closes {
				b.Close()
			} else {
				r.Uncertain = true
				release(t, b, r)
			}
			if s.holder("x") != (driver.ID{}) {
				t.Errorf("closed %t: the lock is still held", closes)
			}
		})
	}
}

// TestErrorsOfContexts: an error of the calls that matches a context's does not reach a caller
// whose context lives.
func TestErrorsOfContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := start(t, setUp{true, false, false}, newShelf(true))
		r := ask("x", time.Minute)
		get(t, b, r)
		c.setGate(func(context.Context, bool) error { return errors.Join(errDown, context.DeadlineExceeded) })
		_, acquire := b.Acquire(t.Context(), ask("y", time.Minute))
		_, inspect := b.Inspect(t.Context(), "x")
		for what, err := range map[string]error{
			"Acquire": acquire, "Inspect": inspect, "Renew": b.Renew(t.Context(), []driver.Request{r})[0].Err, "Release": b.Release(t.Context(), r),
		} {
			if !errors.Is(err, errDown) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
