package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// TestRedisCloseMakesCallsReturn closes backends whose connections are bad while calls of every
// kind are under way, over clients whose own timeouts are long: they dial and read for 25 s.
func TestRedisCloseMakesCallsReturn(t *testing.T) {
	s := service.StartOwn(t, Redis)
	both := func(fault func(*netfault.Proxy, netfault.Direction) func()) func(*netfault.Proxy) func() {
		return func(p *netfault.Proxy) func() {
			there, back := fault(p, netfault.ToServer), fault(p, netfault.ToClient)
			return func() { there(); back() }
		}
	}
	for _, c := range []struct {
		name  string
		fault func(*netfault.Proxy) (heal func())
	}{
		{"held", (*netfault.Proxy).Isolate},
		{"no replies", func(p *netfault.Proxy) func() { return p.Hold(netfault.ToClient) }},
		{"vanished", both((*netfault.Proxy).Vanish)},
		{"cut and held", func(p *netfault.Proxy) func() { defer p.Cut(); return p.Isolate() }},
		// connections can be opened, but get no answers
		{"cut, then no replies", func(p *netfault.Proxy) func() { defer p.Cut(); return p.Hold(netfault.ToClient) }},
		{"cut and refused", func(p *netfault.Proxy) func() { defer p.Cut(); return p.Refuse() }},
	} {
		// how long it was cut off before
		for _, used := range []time.Duration{0, 100 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, %s before", c.name, used), func(t *testing.T) {
				t.Parallel()
				p := netfault.NewProxy()
				t.Cleanup(p.Close)
				b := overRedis(t, goredis.NewClient(&goredis.Options{
					Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true, DialTimeout: 25 * time.Second, ReadTimeout: 25 * time.Second,
				}), p, redis.Options{}).(*owning).Backend
				other := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, ReadTimeout: 20 * time.Second}), netfault.NewProxy(), redis.Options{})
				var held []driver.Request
				for i := range 8 {
					held = append(held, steps.Request(fmt.Sprint(t.Name(), i)))
					if _, err := steps.Acquire(t.Context(), b, held[i]); err != nil {
						t.Fatal(err)
					}
				}
				busy := steps.Request(t.Name() + " busy")
				if _, err := steps.Acquire(t.Context(), other, busy); err != nil {
					t.Fatal(err)
				}
				var calls sync.WaitGroup
				var mu sync.Mutex
				closed, slowest, slow := time.Time{}, time.Duration(0), ""
				begin := func(what string, f func() error) {
					calls.Go(func() {
						err := f()
						at := time.Now()
						mu.Lock()
						defer mu.Unlock()
						if err == nil {
							t.Errorf("%s succeeded off the line", what)
						} else if !closed.IsZero() && at.After(closed) && !errors.Is(err, driver.ErrClosed) && c.name != "cut and refused" {
							t.Errorf("%s at Close: %v", what, err)
						}
						if took := at.Sub(closed); !closed.IsZero() && took > slowest {
							slowest, slow = took, what
						}
					})
				}
				acquire := func(r driver.Request) func() error {
					return func() error { _, err := steps.Acquire(context.Background(), b, r); return err }
				}
				waits := steps.Request(busy.Name)
				waits.Wait = true
				begin("an Acquire that waits", acquire(waits))
				await.That(t, "it waits", func() bool {
					q, err := other.Inspect(t.Context(), busy.Name)
					return err == nil && len(q.Waiters()) == 1
				})
				defer c.fault(p)()
				<-time.After(used)
				for i, r := range held {
					begin("Acquire", acquire(steps.Request(fmt.Sprint(t.Name(), " free ", i))))
					begin("Release", func() error { return b.Release(context.Background(), r) })
					begin("Renew", func() error { return b.Renew(context.Background(), []driver.Request{r})[0].Err })
					begin("Inspect", func() error { _, err := b.Inspect(context.Background(), r.Name); return err })
				}
				begin("Break", func() error { return b.Break(context.Background(), busy.Name, 1, true) })
				begin("List", func() error { _, err := b.List(context.Background()); return err })
				// most are under way; those that are not are refused
				<-time.After(20 * time.Millisecond)
				stood := steps.MeasureStalls()
				mu.Lock()
				closed = time.Now()
				mu.Unlock()
				if err := b.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				took := time.Since(closed)
				await.All(t, &calls)
				t.Logf("Close took %s, the slowest call (%s) returned after %s", took, slow, slowest)
				// At once, and within 3 s on a machine that does not stand still.
				if idle := stood(); took > 5*time.Second+idle || slowest > 2*time.Second+idle {
					t.Errorf("Close took %s, the slowest call (%s) returned after %s, and the machine stood still for %s", took, slow, slowest, idle)
				}
			})
		}
	}
}
