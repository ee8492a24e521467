package conformance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// sluggish is a service that stands still for a while in each Acquire.
type sluggish struct {
	driver.Backend
	stands time.Duration
}

func (s sluggish) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	pause(s.stands)
	return s.Backend.Acquire(ctx, r)
}

func TestALawBeginsAnewOnlyAfterAStandstill(t *testing.T) {
	const ttl = 10 * time.Second
	fatal := func(e *env) { e.Fatalf("a breach") }
	fails := func(e *env) { e.Errorf("a breach") }
	strict := func(e *env) { e.strict().Fatalf("a breach") }
	both := func(e *env) { e.strict().Errorf("a leak"); e.Fatalf("a breach") }
	sound := func(*env) {}
	for _, c := range []struct {
		what   string
		stands time.Duration
		says   []func(*env) // in each round; the last stands for all that follow
		rounds int
		failed bool
	}{
		{"a service that goes on", ttl / 100, []func(*env){fatal}, 1, true},
		{"a service that goes on, and an error", ttl / 100, []func(*env){fails}, 1, true},
		{"a sound driver", ttl / 2, []func(*env){sound}, 1, false},
		{"a failure after a standstill", ttl / 2, []func(*env){fatal, sound}, 2, false},
		{"an error after a standstill", ttl / 2, []func(*env){fails, sound}, 2, false},
		{"a broken driver on a service that stands still", ttl / 2, []func(*env){fatal}, 4, true},
		{"what no standstill excuses", ttl / 2, []func(*env){strict, sound}, 1, true},
		{"what no standstill excuses, and what one does", ttl / 2, []func(*env){both, sound}, 1, true},
		{"what no standstill excuses, in the second round", ttl / 2, []func(*env){fails, strict, sound}, 2, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{name: c.what}
				r.ctx, r.cancel = context.WithCancel(context.Background())
				s := newToy(none)
				h := Harness{Open: func(T) driver.Backend { return sluggish{s.open(), c.stands} }, TTL: ttl}
				var ttls []time.Duration
				l := Law{Name: c.what, still: keepsShort, run: func(e *env) {
					pause(ttl) // the standstill has come
					say := c.says[min(len(ttls), len(c.says)-1)]
					ttls = append(ttls, e.ttl)
					say(e)
				}}
				returned := false
				alone(func() { l.Run(r, h); returned = true })
				if !returned && !r.ended {
					t.Errorf("the law ended in no way that package testing knows:\n%s", r)
				}
				r.cancel()
				for _, f := range r.cleanups {
					alone(f)
				}
				close(s.end)
				pause(10 * time.Minute)
				if len(ttls) != c.rounds || r.failed != c.failed {
					t.Errorf("it ran with the TTLs %s and failed %t; want %d rounds and %t:\n%s", ttls, r.failed, c.rounds, c.failed, r)
				}
				for i, got := range ttls {
					if got != ttl<<i {
						t.Errorf("round %d has the TTL %s", i, got)
					}
				}
			})
		})
	}
}
