package memory

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

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

func TestCancelledWaitLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h := permit("lock", 0)
		must(t, a, h)
		ctx, cancel := context.WithCancel(t.Context())
		w := ask("lock")
		writer := start(ctx, b, w)
		reader := start(t.Context(), b, permit("lock", 0))
		waits(t, reader)
		cancel()
		if err := returns(t, writer).err; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
			t.Errorf("a cancelled wait is %v", err)
		}
		waits(t, reader)
		wants(t, b.Release(t.Context(), w), nil)
		wants(t, returns(t, reader).err, nil) // it waited for the writer only
		if q, _ := a.Inspect(t.Context(), "lock"); q.Len() != 2 {
			t.Fatalf("%d requests are in the queue", q.Len())
		}
	})
}

// racing is a context that ends at the moment when Acquire begins to wait, which is when it first
// calls Done.
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
						// then its release passes the grant on
						err = context.Canceled
						wants(t, b.Release(t.Context(), r), nil)
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

func TestWaitersCostNoGoroutineAndOneWakeUp(t *testing.T) {
	const waiters = 1000
	b := open(t, nil)
	defer b.Close()
	h := ask("lock")
	must(t, b, h)
	goroutines := runtime.NumGoroutine()
	var ws []*wait
	for range waiters {
		_, w, err := b.enqueue(ask("lock"))
		wants(t, err, nil)
		ws = append(ws, w)
	}
	n := runtime.NumGoroutine()
	for end := time.Now().Add(20 * time.Second); n > goroutines && time.Now().Before(end); n = runtime.NumGoroutine() {
		time.Sleep(time.Millisecond) // goroutines of earlier tests may still end
	}
	if n > goroutines {
		t.Errorf("%d goroutines, %d before any request waited", n, goroutines)
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
