package memory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// inBubble runs a law on two clients of one space under a fake clock. Nothing may be left once they
// are closed; that no goroutine is left, synctest sees to.
func inBubble(t *testing.T, law func(t *testing.T, a, b *Backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := new(Space)
		a, b := open(t, s), open(t, s)
		law(t, a, b)
		atRest(t, s)
		a.Close()
		b.Close()
		synctest.Wait()
		empty(t, s)
	})
}

func TestHolderExpiresToTheNanosecond(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		must(t, a, r)
		time.Sleep(ttl - 1)
		_, err := b.Acquire(t.Context(), try("lock"))
		wants(t, err, driver.ErrHeld)
		time.Sleep(time.Nanosecond)
		must(t, b, ask("lock"))
		wants(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, driver.ErrLost)
		wants(t, a.Release(t.Context(), r), driver.ErrLost)
		_, err = a.Acquire(t.Context(), r) // what has expired is not resumed
		wants(t, err, driver.ErrLost)
	})
}

func TestWaiterIsGrantedWhenTheHolderExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		began := time.Now()
		r := ask("lock")
		first := must(t, a, r)
		time.Sleep(ttl / 2)
		w := start(t.Context(), b, ask("lock"))
		if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil || p.TTL != ttl || !p.SentAt.Equal(time.Now()) {
			t.Fatalf("renewal %+v", p)
		}
		time.Sleep(ttl - 1)
		waits(t, w)
		time.Sleep(time.Nanosecond)
		g := returns(t, w)
		if g.err != nil || g.Token <= first.Token || g.TTL != ttl || !g.SentAt.Equal(began.Add(ttl+ttl/2)) {
			t.Fatalf("%+v after a hold with token %d that ended %v after %v", g, first.Token, ttl+ttl/2, began)
		}
	})
}

func TestWaitingRequestDoesNotExpire(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h, r := ask("lock"), ask("lock")
		must(t, a, h)
		w := start(t.Context(), b, r)
		for range 100 {
			time.Sleep(ttl / 2)
			wants(t, a.Renew(t.Context(), []driver.Request{h})[0].Err, nil)
		}
		wants(t, b.Renew(t.Context(), []driver.Request{r})[0].Err, driver.ErrNotHeld)
		waits(t, w)
		wants(t, a.Release(t.Context(), h), nil)
		wants(t, returns(t, w).err, nil)
	})
}

func TestFixedRequestEndsOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h, r := ask("lock"), ask("lock")
		h.Fixed, r.Fixed = true, true
		must(t, a, h)
		time.Sleep(ttl / 2)
		wants(t, a.Renew(t.Context(), []driver.Request{h})[0].Err, nil)
		w := start(t.Context(), b, r)
		time.Sleep(ttl)
		wants(t, returns(t, w).err, nil) // its time begins only now
		time.Sleep(ttl - 1)
		_, err := a.Acquire(t.Context(), try("lock"))
		wants(t, err, driver.ErrHeld)
		time.Sleep(time.Nanosecond)
		must(t, a, ask("lock"))
	})
}

func TestWaitersAreGrantedInOrderOneAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		rs := []driver.Request{ask("lock")}
		must(t, a, rs[0])
		var ws []<-chan answer
		for i := range 20 {
			rs = append(rs, ask("lock"))
			ws = append(ws, start(t.Context(), []*Backend{a, b}[i%2], rs[i+1]))
		}
		last := driver.Token(0)
		for i, w := range ws {
			for _, later := range ws[i:] {
				waits(t, later)
			}
			wants(t, a.Release(t.Context(), rs[i]), nil)
			g := returns(t, w)
			wants(t, g.err, nil)
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
		}
	})
}

func TestReadersAndSemaphores(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r1, w1, r2 := permit("rw", 0), ask("rw"), permit("rw", 0)
		must(t, a, r1)
		must(t, b, permit("rw", 0))
		writer := start(t.Context(), a, w1)
		reader := start(t.Context(), b, r2)
		waits(t, reader) // behind the writer
		wants(t, a.Release(t.Context(), w1), nil)
		wants(t, returns(t, writer).err, driver.ErrLost)
		wants(t, returns(t, reader).err, nil)

		p := permit("sem", 2)
		must(t, a, p)
		must(t, b, permit("sem", 2))
		_, err := a.Acquire(t.Context(), try("sem"))
		wants(t, err, driver.ErrConflict)
		w := start(t.Context(), a, permit("sem", 2))
		waits(t, w)
		wants(t, a.Release(t.Context(), p), nil)
		wants(t, returns(t, w).err, nil)
	})
}

func TestJoin(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		g := must(t, a, r)
		w := start(t.Context(), b, ask("lock"))
		j, k := join(r), join(r)
		k.Mode = driver.Shared
		if got := must(t, b, j); got.Token != g.Token {
			t.Fatalf("token %d of a join to %d", got.Token, g.Token)
		}
		must(t, a, k)
		wants(t, a.Release(t.Context(), r), nil)
		wants(t, b.Release(t.Context(), j), nil)
		_, err := b.Acquire(t.Context(), join(r)) // Exclusive, under what is only Shared by now
		wants(t, err, driver.ErrUpgrade)
		waits(t, w)
		time.Sleep(ttl) // the last part of the hold expires
		wants(t, returns(t, w).err, nil)
		_, err = b.Acquire(t.Context(), join(r))
		wants(t, err, driver.ErrLost)
	})
}

func TestSameRequestTwiceIsOne(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		first := must(t, a, r)
		time.Sleep(ttl - 1)
		if again := must(t, a, r); again.Token != first.Token || !again.SentAt.Equal(time.Now()) {
			t.Fatalf("%+v, resumed as %+v", first, again)
		}
		other := r
		other.Name = "another"
		if _, err := a.Acquire(t.Context(), other); err == nil {
			t.Fatal("one ID stands under two names")
		}
		wants(t, a.Release(t.Context(), other), driver.ErrLost)

		time.Sleep(ttl - 1) // still held: its TTL was armed anew
		waiting := ask("lock")
		w1, w2 := start(t.Context(), b, waiting), start(t.Context(), b, waiting)
		wants(t, a.Release(t.Context(), r), nil)
		g1, g2 := returns(t, w1), returns(t, w2)
		if g1 != g2 || g1.err != nil {
			t.Fatalf("%+v and %+v", g1, g2)
		}
		wants(t, b.Release(t.Context(), waiting), nil)
		empty(t, a.space)
	})
}

func TestTryLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h := permit("lock", 0)
		must(t, a, h)
		_, err := b.Acquire(t.Context(), try("lock"))
		wants(t, err, driver.ErrHeld)

		r := ask("lock")
		writer := start(t.Context(), b, r)
		reader := start(t.Context(), b, permit("lock", 0))
		r.Wait = false
		_, err = b.Acquire(t.Context(), r) // changed its mind
		wants(t, err, driver.ErrHeld)
		wants(t, returns(t, writer).err, driver.ErrLost)
		wants(t, returns(t, reader).err, nil)
		if q, _ := a.Inspect(t.Context(), "lock"); q.Len() != 2 {
			t.Fatalf("%d requests stand", q.Len())
		}
	})
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h := permit("lock", 0)
		must(t, a, h)
		ctx, cancel := context.WithCancel(t.Context())
		writer := start(ctx, b, ask("lock"))
		reader := start(t.Context(), b, permit("lock", 0))
		waits(t, reader)
		cancel()
		if err := returns(t, writer).err; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
			t.Errorf("a cancelled wait is %v", err)
		}
		wants(t, returns(t, reader).err, nil) // it waited for the writer only
		if q, _ := a.Inspect(t.Context(), "lock"); q.Len() != 2 {
			t.Fatalf("%d requests stand", q.Len())
		}
	})
}

// racing is a context that ends at the moment when Acquire begins to wait, which is when it first
// asks for Done.
type racing struct {
	context.Context
	end func()
}

func (c *racing) Done() <-chan struct{} {
	c.end()
	return c.Context.Done()
}

func TestCancelRacesWithGrant(t *testing.T) {
	for _, order := range []string{"grant, cancel", "cancel, grant"} {
		t.Run(order, func(t *testing.T) {
			outcomes := map[error]int{}
			for range 200 {
				inBubble(t, func(t *testing.T, a, b *Backend) {
					h, r, next := ask("lock"), ask("lock"), ask("lock")
					must(t, a, h)
					ctx, cancel := context.WithCancel(t.Context())
					var w <-chan answer
					_, err := b.Acquire(&racing{ctx, func() {
						w = start(t.Context(), a, next)
						if order == "cancel, grant" {
							cancel()
						}
						wants(t, a.Release(t.Context(), h), nil)
						cancel()
					}}, r)
					switch {
					case err == nil: // then it holds, and the next waits
						waits(t, w)
						wants(t, b.Release(t.Context(), r), nil)
					case errors.Is(err, context.Canceled):
						// then it is gone, and the grant was passed on
						err = context.Canceled
						wants(t, b.Release(t.Context(), r), driver.ErrLost)
					}
					outcomes[err]++
					wants(t, returns(t, w).err, nil)
				})
			}
			if outcomes[nil] == 0 || outcomes[context.Canceled] == 0 || len(outcomes) != 2 {
				t.Errorf("outcomes %v: want both", outcomes)
			}
		})
	}
}

func TestUncertainReleaseLeavesATomb(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r, never := ask("lock"), ask("lock")
		r.Uncertain, never.Uncertain = true, true
		must(t, a, r)
		wants(t, a.Release(t.Context(), r), nil)
		wants(t, a.Release(t.Context(), never), driver.ErrLost) // it overtook its Acquire
		time.Sleep(ttl - 1)
		for _, late := range []driver.Request{r, never} {
			_, err := a.Acquire(t.Context(), late)
			wants(t, err, driver.ErrLost)
		}
		empty(t, a.space)
		must(t, b, ask("lock"))
	})
}

func TestTombsAreSweptOut(t *testing.T) {
	inBubble(t, func(t *testing.T, a, _ *Backend) {
		for i := range 10_000 {
			r := ask("lock")
			r.Uncertain = true
			a.Release(t.Context(), r)
			time.Sleep(ttl / 100)
			if n := len(a.space.tombs.until); n > 2*102+64 {
				t.Fatalf("%d tombs after %d releases, of which 100 count", n, i)
			}
		}
		if n := len(a.space.tombs.until); n < 100 {
			t.Fatalf("%d tombs of 100 that count", n)
		}
	})
}

func TestBreakLetsTheHoldRunOut(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		g := must(t, a, r)
		j := join(r)
		must(t, a, j)
		w := start(t.Context(), b, ask("lock"))
		wants(t, b.Break(t.Context(), "lock", g.Token+1, false), driver.ErrNotHeld)
		wants(t, b.Break(t.Context(), "lock", 0, true), driver.ErrNotHeld)
		wants(t, b.Break(t.Context(), "other", g.Token, true), driver.ErrNotHeld)
		wants(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, nil)

		time.Sleep(ttl / 2)
		wants(t, b.Break(t.Context(), "lock", g.Token, false), nil)
		for _, p := range a.Renew(t.Context(), []driver.Request{r, j}) {
			wants(t, p.Err, driver.ErrLost)
		}
		for _, again := range []driver.Request{r, j, join(r)} {
			_, err := a.Acquire(t.Context(), again)
			wants(t, err, driver.ErrLost)
		}
		time.Sleep(ttl/2 - 1)
		waits(t, w)
		time.Sleep(time.Nanosecond)
		wants(t, returns(t, w).err, nil)
		// the successor is safe
		wants(t, b.Break(t.Context(), "lock", g.Token, true), driver.ErrNotHeld)
	})
}

func TestForcedBreakEndsTheHoldNow(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		g := must(t, a, r)
		j := join(r)
		must(t, b, j)
		w := start(t.Context(), b, ask("lock"))
		wants(t, b.Break(t.Context(), "lock", g.Token, true), nil)
		wants(t, returns(t, w).err, nil)
		wants(t, a.Release(t.Context(), r), driver.ErrLost)
		for _, late := range []driver.Request{r, j} { // a copy of it must not come back
			_, err := a.Acquire(t.Context(), late)
			wants(t, err, driver.ErrLost)
		}
	})
}

func TestLossesAreTold(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		lost := make(chan driver.ID, 10)
		a.Notify(func(id driver.ID) {
			a.space.mu.Lock() // would hang if it were held
			defer a.space.mu.Unlock()
			lost <- id
		})
		b.Notify(func(id driver.ID) { t.Errorf("told of %v, which is another client's", id) })
		told := func(want ...driver.ID) {
			t.Helper()
			synctest.Wait()
			var got []driver.ID
			for len(lost) > 0 {
				got = append(got, <-lost)
			}
			if len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
				t.Fatalf("told of %v, want %v", got, want)
			}
		}
		r := ask("lock")
		g := must(t, a, r)
		wants(t, b.Break(t.Context(), "lock", g.Token, false), nil)
		told() // it runs out
		wants(t, b.Break(t.Context(), "lock", g.Token, true), nil)
		told(r.ID)

		expires := ask("lock")
		must(t, a, expires)
		w := start(t.Context(), b, ask("lock"))
		time.Sleep(ttl) // the waiter's timer notices
		told(expires.ID)
		wants(t, returns(t, w).err, nil)

		released, unseen := ask("other"), ask("other")
		must(t, a, released)
		wants(t, a.Release(t.Context(), released), nil)
		must(t, a, unseen)
		time.Sleep(2 * ttl)
		told()
		_, err := a.Inspect(t.Context(), "other") // notices
		wants(t, err, nil)
		told(unseen.ID)
	})
}

func TestCloseGivesBackAndWakes(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		a.Notify(func(driver.ID) { t.Error("told of what its own Close removed") })
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

func TestInspect(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		r.Label = "shop"
		g := must(t, a, r)
		time.Sleep(3 * time.Second)
		j, waiting := join(r), ask("lock")
		must(t, b, j)
		start(t.Context(), b, waiting)
		time.Sleep(time.Second)
		q, err := b.Inspect(t.Context(), "lock")
		wants(t, err, nil)
		who := map[driver.ID]string{r.ID: "holder", j.ID: "join", waiting.ID: "waiter"}
		var got []string
		for _, e := range slices.Concat(q.Holders(), q.Waiters()) {
			got = append(got, fmt.Sprintf("%s %q %v %v %v", who[e.ID], e.Label, e.Token == g.Token, e.Age, e.Left))
		}
		want := []string{
			`holder "shop" true 4s 6s`,
			`join "shop" true 1s 9s`,
			`waiter "" false 1s 10s`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q\nwant %q", got, want)
		}
		q.Arrivals[0].Broken = true // a copy
		wants(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, nil)
		if q, err := b.Inspect(t.Context(), "nobody's"); q.Len() > 0 || err != nil {
			t.Errorf("of a free name: %v, %v", q, err)
		}
		time.Sleep(3 * ttl)
		q, _ = b.Inspect(t.Context(), "lock")
		if q.Len() > 0 { // the waiter was granted, and expired unseen
			t.Errorf("what has expired is shown: %v", q)
		}
		if names, _ := b.List(t.Context()); len(names) > 0 {
			t.Errorf("List: %q", names)
		}
	})
}

func TestWaitersCostNoGoroutineAndOneWakeUp(t *testing.T) {
	const waiters = 1000
	b := open(t, nil)
	defer b.Close()
	h := ask("lock")
	must(t, b, h)
	goroutines := runtime.NumGoroutine()
	var ws []*wait
	for range waiters {
		_, w, err := b.enter(ask("lock"))
		wants(t, err, nil)
		ws = append(ws, w)
	}
	n := runtime.NumGoroutine()
	for end := time.Now().Add(20 * time.Second); n > goroutines && time.Now().Before(end); n = runtime.NumGoroutine() {
		time.Sleep(time.Millisecond) // those of tests before may come and go
	}
	if n > goroutines {
		t.Errorf("%d goroutines, %d before anybody waited", n, goroutines)
	}
	wants(t, b.Release(t.Context(), h), nil)
	woken := 0
	for _, w := range ws {
		select {
		case <-w.done:
			woken++
		default:
		}
	}
	if woken != 1 {
		t.Errorf("%d of %d woken", woken, waiters)
	}
}

func TestEmptyQueueLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h, r := ask("lock"), ask("lock")
		must(t, a, h)
		w := start(t.Context(), b, r)
		q := a.space.queues["lock"]
		wants(t, a.Release(t.Context(), h), nil)
		wants(t, returns(t, w).err, nil)
		wants(t, b.Release(t.Context(), r), nil)
		empty(t, a.space)
		if q.timer.Stop() {
			t.Error("the timer goes on")
		}
	})
	x, y, z := &driver.Entry{}, &driver.Entry{}, &driver.Entry{}
	es := []*driver.Entry{x, y, z}
	if left := without(es, 1); !slices.Equal(left, []*driver.Entry{x, z}) || es[0] != nil {
		t.Errorf("%v without the second is %v, and keeps %v", []*driver.Entry{x, y, z}, left, es[0])
	}
}

func TestAllocations(t *testing.T) {
	b := open(t, nil)
	defer b.Close()
	r := ask("lock")
	if n := testing.AllocsPerRun(1000, func() {
		b.Acquire(t.Context(), r)
		b.Release(t.Context(), r)
	}); n > 3 { // the queue, its slice, the request
		t.Errorf("%v allocations to lock and unlock", n)
	}
}
