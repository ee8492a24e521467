package containers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver/redis"
)

// proxied returns a client of the server that reaches it through a proxy only, which counts.
func proxied(t *testing.T, s *Server, opts ...dlock.Option) (*dlock.Client, *Proxy) {
	t.Helper()
	p := NewProxy()
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{})
	c, err := dlock.New(b, append([]dlock.Option{dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, p
}

// scripts returns how often scripts were run and messages published on the server.
func (c *cli) scripts() (run, published int64) {
	c.t.Helper()
	info, err := c.Info(c.ctx, "commandstats").Result()
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	calls := func(command string) int64 {
		first, _, _ := strings.Cut(infoField(info, "cmdstat_"+command), ",")
		n, _ := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
		return n
	}
	return calls("evalsha") + calls("eval"), calls("publish")
}

// What a loaded machine is late with is sent once more, on a new connection: so each price is the median of several.
func TestRedisRoundTrips(t *testing.T) {
	s := StartOwn(t, Redis)
	c, p := proxied(t, s)
	other, _ := proxied(t, s)
	prices := map[string][]int64{}
	costs := func(what string, f func() error) {
		t.Helper()
		before := p.Counts().RoundTrips
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		prices[what] = append(prices[what], p.Counts().RoundTrips-before)
	}
	lock := func(l **dlock.Lease, m dlock.Mutex) func() error {
		return func() (err error) { *l, err = m.Lock(t.Context()); return err }
	}
	const rounds = 9
	for i := range rounds {
		var l, again *dlock.Lease
		for _, name := range []string{fmt.Sprint("never used before ", i), "used"} {
			costs("Lock", lock(&l, c.Mutex(name)))
			costs("re-entry", func() (err error) { again, err = c.Mutex(name).Lock(l.Context(t.Context())); return err })
			costs("Unlock of the re-entry", func() error { return again.Unlock(t.Context()) })
			costs("Unlock", func() error { return l.Unlock(t.Context()) })
		}
		costs("TryLock", func() (err error) { l, err = c.Mutex("used").TryLock(t.Context()); return err })
		costs("Unlock", func() error { return l.Unlock(t.Context()) })

		var held *dlock.Lease
		if err := lock(&held, other.Mutex("busy"))(); err != nil {
			t.Fatal(err)
		}
		costs("TryLock of what is held", func() error {
			if _, err := c.Mutex("busy").TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
				return fmt.Errorf("two hold it: %w", err)
			}
			return nil
		})
		costs("Lock with a wait", func() error {
			got := make(chan error, 1)
			go func() { got <- lock(&l, c.Mutex("busy"))() }()
			await(t, "it waits", func() bool {
				q, err := other.Inspect(t.Context(), "busy")
				return err == nil && len(q.Waiters()) == 1
			})
			if i == 0 {
				<-time.After(200 * time.Millisecond) // the first wait subscribes
			}
			if err := held.Unlock(t.Context()); err != nil {
				return err
			}
			return <-got
		})
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for what, want := range map[string]int64{
		"Lock": 1, "re-entry": 0, "Unlock of the re-entry": 0, "Unlock": 1, "TryLock": 1, "TryLock of what is held": 1, "Lock with a wait": 2,
	} {
		n := slices.Sorted(slices.Values(prices[what]))
		if got := n[len(n)/2]; got != want {
			t.Errorf("%s cost %d round trips, not %d: %v", what, got, want, prices[what])
		}
	}
}

func TestRedisWaitingCostsTimedLooks(t *testing.T) {
	s := StartOwn(t, Redis)
	holder, _ := proxied(t, s, dlock.TTL(time.Minute))
	c, p := proxied(t, s, dlock.TTL(time.Minute))
	held, err := holder.Mutex("long").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const waiters = 50
	for range waiters {
		wg.Go(func() {
			l, err := c.Mutex("long").Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	await(t, "all wait", func() bool {
		q, err := holder.Inspect(t.Context(), "long")
		return err == nil && len(q.Waiters()) == waiters
	})
	<-time.After(time.Second) // the subscription is there, and all asked after it
	counter := s.cli(t)
	ran, _ := counter.scripts()
	before, start := p.Counts().RoundTrips, time.Now()
	<-time.After(5 * time.Second)
	now, _ := counter.scripts()
	// The look-out is once in 0.8 to 1 second; the subscription shows that it lives every 3.
	took := time.Since(start)
	looks := int64(took/(800*time.Millisecond)) + 1
	if n := now - ran; n > looks {
		t.Errorf("%d waiters of one client ran %d scripts in %s; want a look each second, %d", waiters, n, took, looks)
	}
	if n := p.Counts().RoundTrips - before; n > looks+int64(took/(3*time.Second))+1 {
		t.Errorf("%d waiters of one client made %d round trips in %s", waiters, n, took)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// Each turn is a Lock that waits, its confirmation and an Unlock: three scripts, one message. Whoever else asks meanwhile was woken in vain.
func TestRedisOneWakeUpPerHandOff(t *testing.T) {
	s := StartOwn(t, Redis)
	counter := s.cli(t)
	for _, clients := range []int{1, 8} {
		var all []*dlock.Client
		for range clients {
			c, _ := proxied(t, s, dlock.TTL(time.Minute))
			all = append(all, c)
		}
		for _, waiters := range []int{2, 16, 128} {
			t.Run(fmt.Sprintf("clients=%d,waiters=%d", clients, waiters), func(t *testing.T) {
				name := t.Name()
				gate, err := all[0].Mutex(name).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for i := range waiters {
					m := all[i%clients].Mutex(name)
					wg.Go(func() {
						l, err := m.Lock(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						if err := l.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
				await(t, "all wait", func() bool {
					q, err := all[0].Inspect(t.Context(), name)
					return err == nil && len(q.Waiters()) == waiters
				})
				<-time.After(500 * time.Millisecond) // all asked after their client's first subscription
				ran, told := counter.scripts()
				start := time.Now()
				if err := gate.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				wg.Wait()
				took := time.Since(start)
				now, nowTold := counter.scripts()
				if n := nowTold - told; n != int64(waiters) {
					t.Errorf("%d messages for %d hand-offs", n, waiters)
				}
				looks := int64(clients) * (int64(took/(800*time.Millisecond)) + 1)
				if n := now - ran; n > 1+2*int64(waiters)+looks {
					t.Errorf("%d scripts for %d hand-offs in %s: want a confirmation and a release for each, and %d looks at most", n, waiters, took, looks)
				}
			})
		}
	}
}

func TestRedisTenThousandLeases(t *testing.T) {
	s := StartOwn(t, Redis)
	const leases, ttl = 10_000, 12 * time.Second
	c, p := proxied(t, s, dlock.TTL(ttl))
	held := make([]*dlock.Lease, leases)
	idle := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for part := range 100 {
		wg.Go(func() {
			for i := part; i < leases; i += 100 {
				l, err := c.Mutex(fmt.Sprint("lease/", i)).Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				held[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if n := runtime.NumGoroutine() - idle; n > leases/20 {
		t.Errorf("%d leases have %d goroutines", leases, n) // the proxy has some for each connection
	}
	before, start := p.Counts().RoundTrips, time.Now()
	<-time.After(ttl)
	rounds := int64(time.Since(start)/(ttl/3)) + 1
	if n := p.Counts().RoundTrips - before; n > 50*rounds {
		t.Errorf("%d leases made %d round trips in %d thirds of their TTL; want 50 in each at most", leases, n, rounds)
	} else {
		t.Logf("%d leases made %d round trips in %d thirds of their TTL", leases, n, rounds)
	}
	for _, l := range held {
		if err := l.Err(); err != nil {
			t.Fatalf("a lease was not renewed: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for part := range 100 {
		wg.Go(func() {
			for i := part; i < leases; i += 100 {
				if err := held[i].Unlock(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
