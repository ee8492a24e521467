package conformance

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// If the harness cannot delay replies, the suite keeps the process so busy that a driver reads each
// reply late, while the service, or its stand-in in this process, is on time. A driver that reads
// the clock after the reply then promises more than the service does, which Inspect shows.

// slice is how long the runtime lets a goroutine compute before another one runs.
const slice = 10 * time.Millisecond

// busily runs f while a few goroutines compute on the process's only processor, so that a goroutine
// which waits for a reply runs last.
func busily(f func()) {
	const spinners, most = 3, 5 * time.Second // in case f does not return
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer wg.Wait()
	defer stop.Store(true)
	for range spinners {
		wg.Go(func() {
			for start := time.Now(); !stop.Load() && time.Since(start) < most; {
			}
		})
	}
	f()
}

// untilDelayed repeats f busily until a call took so long that it was interrupted, or for a while.
// A call that does not wait is too short to be interrupted each time.
func (e *env) untilDelayed(what string, f func(ctx context.Context) error) {
	e.Helper()
	const delayed, most = slice * 8 / 10, 5 * slice
	err := call(e, what, func(ctx context.Context) (err error) {
		busily(func() {
			for began := time.Now(); ; { // at least once, however late this begins
				start := time.Now()
				if err = f(ctx); err != nil || time.Since(start) > delayed || time.Since(began) > most {
					return
				}
			}
		})
		return err
	})
	if err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

// compute returns after d without having waited for anything.
func compute(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}

// timeIsVirtual reports whether this is a testing/synctest bubble, where computing takes no time.
func timeIsVirtual() bool {
	start := time.Now()
	for range 1_000_000 {
		if time.Since(start) > 0 {
			return false
		}
	}
	return true
}

// proofBeforeBusy is proof-before on a busy process.
func proofBeforeBusy(e *env) {
	const rounds, rounding = 20, slice / 2 // Inspect may round the remaining time
	d, other, name := e.direct(), e.direct(), e.name()
	within := func(what string, r driver.Request, sentAt time.Time, ttl time.Duration) {
		e.Helper()
		if ttl == 0 {
			ttl = r.TTL
		}
		for _, h := range e.inspect(name).Holders() {
			if over := sentAt.Add(ttl).Sub(time.Now().Add(h.Left)); h.ID == r.ID && over > rounding {
				e.strict().Fatalf("the promise of %s, whose reply was read late, outlasts the service's by %s: SentAt is not from before the call", what, over)
			}
		}
	}
	give := func(c *direct, r driver.Request) {
		e.Helper()
		if err := c.release(r); err != nil {
			e.Fatalf("Release: %v", err)
		}
	}
	for range rounds {
		var r driver.Request
		var g driver.Grant
		held := false
		e.untilDelayed("Acquire", func(ctx context.Context) (err error) {
			if held {
				if err := d.Release(ctx, r); err != nil {
					return err
				}
			}
			r = d.ask(name)
			g, err = d.Acquire(ctx, r)
			held = err == nil
			return err
		})
		within("a grant", r, g.SentAt, g.TTL)

		e.untilDelayed("Acquire, sent again,", func(ctx context.Context) (err error) {
			g, err = d.Acquire(ctx, r)
			return err
		})
		within("a grant sent again", r, g.SentAt, g.TTL)

		rs, ps := []driver.Request{r}, []driver.Renewal(nil)
		e.untilDelayed("Renew", func(ctx context.Context) error {
			if ps = d.Renew(ctx, rs); len(ps) != 1 {
				return fmt.Errorf("1 request, but %d results", len(ps))
			}
			return ps[0].Err
		})
		within("a renewal", r, ps[0].SentAt, ps[0].TTL)
		give(d, r)
	}
	if !e.caps.Queue {
		return
	}
	for range rounds / 2 {
		held, next := other.ask(name), d.ask(name)
		next.Wait = true
		other.get(held)
		done := d.begin(next)
		e.becomes(name, 1, 1)
		var g grantOrError
		busily(func() {
			give(other, held)
			compute(2 * slice)
			g = d.receive(done)
		})
		if g.err != nil {
			e.Fatalf("Acquire: %v", g.err)
		}
		within("a grant after a wait", next, g.SentAt, g.TTL)
		give(d, next)
	}
}
