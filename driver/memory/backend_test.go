package memory

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestLossesAreReported(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		lost := make(chan driver.ID, 10)
		a.Notify(func(id driver.ID) {
			a.space.mu.Lock() // would hang if it were held
			defer a.space.mu.Unlock()
			lost <- id
		})
		b.Notify(func(id driver.ID) { t.Errorf("notified of %v, which is another client's", id) })
		notified := func(want ...driver.ID) {
			t.Helper()
			synctest.Wait()
			var got []driver.ID
			for len(lost) > 0 {
				got = append(got, <-lost)
			}
			if len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
				t.Fatalf("notified of %v, want %v", got, want)
			}
		}
		r := ask("lock")
		g := must(t, a, r)
		wants(t, b.Break(t.Context(), "lock", g.Token, false), nil)
		notified() // it runs out
		wants(t, b.Break(t.Context(), "lock", g.Token, true), nil)
		notified(r.ID)

		expires := ask("lock")
		must(t, a, expires)
		w := start(t.Context(), b, ask("lock"))
		time.Sleep(ttl) // the waiter's timer detects the expiry
		notified(expires.ID)
		wants(t, returns(t, w).err, nil)

		released, unseen := ask("other"), ask("other")
		must(t, a, released)
		wants(t, a.Release(t.Context(), released), nil)
		must(t, a, unseen)
		time.Sleep(2 * ttl)
		notified()
		_, err := a.Inspect(t.Context(), "other") // detects the expiry
		wants(t, err, nil)
		notified(unseen.ID)
	})
}

func TestCloseReleasesAndWakes(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		a.Notify(func(driver.ID) { t.Error("notified of what its own Close removed") })
		hold := ask("lock")
		must(t, a, hold)
		must(t, b, join(hold))
		must(t, a, ask("other"))
		w1, w2 := start(t.Context(), a, ask("other")), start(t.Context(), b, ask("other"))
		w3, w4 := start(t.Context(), a, ask("lock")), start(t.Context(), b, ask("lock"))
		wants(t, a.Close(), nil)
		wants(t, returns(t, w1).err, driver.ErrClosed)
		wants(t, returns(t, w2).err, nil)
		wants(t, returns(t, w3).err, driver.ErrClosed)
		waits(t, w4) // for the join
		if names, _ := b.List(t.Context()); len(names) != 2 {
			t.Fatalf("List: %q", names)
		}
		b.Close()
		wants(t, returns(t, w4).err, driver.ErrClosed)
	})
}

func TestClosedClient(t *testing.T) {
	b := open(t, nil)
	r := ask("lock")
	must(t, b, r)
	b.Close()
	_, err := b.Acquire(t.Context(), ask("lock"))
	wants(t, err, driver.ErrClosed)
	wants(t, b.Renew(t.Context(), []driver.Request{r})[0].Err, driver.ErrClosed)
	wants(t, b.Release(t.Context(), r), driver.ErrClosed)
	wants(t, b.Break(t.Context(), "lock", 1, true), driver.ErrClosed)
	_, err = b.Inspect(t.Context(), "lock")
	wants(t, err, driver.ErrClosed)
	_, err = b.List(t.Context())
	wants(t, err, driver.ErrClosed)
	wants(t, b.Close(), nil)
}

// TestCloseOfAnUnseenFixedRequest: it was granted after its Acquire had ended, so it ends with its
// client. A request whose Acquire returned the grant stays.
func TestCloseOfAnUnseenFixedRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		for _, again := range []bool{false, true} {
			c := open(t, b.space)
			hold, fixed := ask("lock"), ask("lock")
			fixed.Fixed = true
			must(t, a, hold)
			ctx, cancel := context.WithCancel(t.Context())
			w := start(ctx, c, fixed)
			cancel()
			wants(t, returns(t, w).err, context.Canceled)
			wants(t, a.Release(t.Context(), hold), nil)
			if again {
				must(t, c, fixed)
			}
			wants(t, c.Close(), nil)
			_, err := a.Acquire(t.Context(), try("lock"))
			if want := map[bool]error{true: driver.ErrHeld}[again]; !errors.Is(err, want) {
				t.Errorf("Acquire: %v; want %v", err, want)
			}
			time.Sleep(ttl)
			_, err = a.Inspect(t.Context(), "lock") // removes what has expired
			wants(t, err, nil)
		}
	})
}
