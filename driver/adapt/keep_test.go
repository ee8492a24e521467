package adapt_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// ends returns how long the lock stays held.
func (s *shelf) ends(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := time.Duration(0)
	for _, h := range s.at(name) {
		left = max(left, time.Until(h.until))
	}
	return left
}

// TestKeptHolds: a fixed request that joins a hold keeps the lock held for its time, whichever is
// longer, after the release of the hold and after Close.
func TestKeptHolds(t *testing.T) {
	for _, closes := range []bool{true, false} {
		for _, ttl := range []time.Duration{10 * time.Second, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf(true)
				b, _ := start(t, setUp{true, false, false}, s)
				hold := ask("x", ttl)
				get(t, b, hold)
				long, short := keep(hold, time.Minute), keep(hold, time.Second)
				get(t, b, long)
				get(t, b, short)
				if p := b.Renew(t.Context(), []driver.Request{hold})[0]; p.Err != nil {
					t.Fatal(p.Err)
				}
				if d := s.ends("x"); d != max(ttl, time.Minute) {
					t.Errorf("while it holds, it ends after %s", d)
				}
				time.Sleep(10*time.Second - 1)
				if closes {
					b.Close()
				} else {
					release(t, b, hold)
					if p := b.Renew(t.Context(), []driver.Request{hold})[0]; !errors.Is(p.Err, driver.ErrLost) {
						t.Errorf("renewed after its release: %v", p.Err)
					}
					if _, err := b.Acquire(t.Context(), keep(hold, time.Hour)); !errors.Is(err, driver.ErrLost) {
						t.Errorf("joined after its release: %v", err)
					}
				}
				if d := s.ends("x"); d != 50*time.Second+1 {
					t.Errorf("closed %t, TTL %s: it ends after %s", closes, ttl, d)
				}
				if closes {
					return
				}
				if err := b.Release(t.Context(), short); !errors.Is(err, driver.ErrLost) {
					t.Errorf("the release of a request whose time is over: %v", err)
				}
				get(t, b, long) // resumed: its time begins again
				if d := s.ends("x"); d != time.Minute {
					t.Errorf("after it was resumed, it ends after %s", d)
				}
				release(t, b, long)
				if d := s.ends("x"); d != 0 {
					t.Errorf("after the release of all, it ends after %s", d)
				}
			})
		}
	}
}

// TestKeepsThatAreRefused: the hold must be one of this client, and stand.
func TestKeepsThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u := newShelf(true), setUp{true, false, false}
		b, _ := start(t, u, s)
		other, _ := start(t, u, s)
		poor, _ := start(t, setUp{}, newShelf(false))
		hold := ask("x", time.Second)
		get(t, b, hold)
		plain := keep(hold, time.Minute)
		plain.Fixed = false
		_, shared := b.Acquire(t.Context(), plain)
		_, dies := poor.Acquire(t.Context(), keep(hold, time.Minute))
		if !errors.Is(shared, driver.ErrUnsupported) || !errors.Is(dies, driver.ErrUnsupported) {
			t.Errorf("%v, %v", shared, dies)
		}
		_, elsewhere := other.Acquire(t.Context(), keep(hold, time.Minute))
		time.Sleep(time.Second)
		_, expired := b.Acquire(t.Context(), keep(hold, time.Minute))
		if !errors.Is(elsewhere, driver.ErrLost) || !errors.Is(expired, driver.ErrLost) {
			t.Errorf("%v, %v", elsewhere, expired)
		}
	})
}

// TestAHoldThatWasKept: the record of a hold lasts for as long as the longest time that it was
// extended to.
func TestAHoldThatWasKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(true)
		b, _ := start(t, setUp{true, false, false}, s)
		hold := ask("x", time.Second)
		get(t, b, hold)
		kept := keep(hold, time.Hour)
		get(t, b, kept)
		if p := b.Renew(t.Context(), []driver.Request{hold})[0]; p.Err != nil {
			t.Fatal(p.Err)
		}
		time.Sleep(5 * time.Minute)
		release(t, b, kept)
		release(t, b, hold)
		if d := s.ends("x"); d != 0 {
			t.Errorf("after the release of all, it ends after %s", d)
		}
	})
}
