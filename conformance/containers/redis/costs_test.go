package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// proxied returns a client that reaches the server only through a counting proxy. No grant is lost
// because the machine is slow.
func proxied(t *testing.T, s *service.Server, opts ...dlock.Option) (*dlock.Client, *netfault.Proxy) {
	t.Helper()
	p := netfault.NewProxy()
	return over(t, s, p, nil, opts...), p
}

// over returns a client on the line. Its pipelines are counted if there is a counter.
func over(t *testing.T, s *service.Server, p *netfault.Proxy, sent *Pipelines, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	rdb := goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true, ReadTimeout: 30 * time.Second})
	if sent != nil {
		rdb.AddHook(sent)
	}
	b := overRedis(t, rdb, p, redis.Options{GrantWindow: 5 * time.Minute})
	c, err := dlock.New(b, append([]dlock.Option{dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// dropped is how many connections were dropped so far. A call that a busy machine answers late is
// sent once more, and its connection is dropped: there are no more copies than that. The proxy sees
// it a moment later.
func dropped(lines ...*netfault.Proxy) int64 {
	var n int64
	for _, p := range lines {
		c := p.Counts()
		n += c.Dialed - int64(c.Open)
	}
	return n
}

// becomes reports whether the condition holds within a few seconds.
func becomes(cond func() bool) bool {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return cond()
}

// A call that a busy machine answers late is sent once more, and is not counted. Of the others the
// median counts, as a check or the ping of a subscription may come in between.
func TestRedisRoundTrips(t *testing.T) {
	s := service.StartOwn(t, Redis)
	c, p := proxied(t, s)
	other, _ := proxied(t, s)
	want := map[string]int64{
		"Lock": 1, "re-entry": 0, "Unlock of the re-entry": 0, "Unlock": 1, "TryLock": 1, "TryLock of what is held": 1, "Lock with a wait": 1,
	}
	prices := map[string][]int64{}
	costs := func(what string, f func() error) {
		t.Helper()
		before, late := p.Counts().RoundTrips, dropped(p)
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := p.Counts().RoundTrips - before; dropped(p) == late {
			prices[what] = append(prices[what], n)
		}
	}
	lock := func(l **dlock.Lease, m dlock.Mutex) func() error {
		return func() (err error) { *l, err = m.Lock(await.Context(t)); return err }
	}
	const rounds = 9
	known := func() bool {
		for what := range want {
			if len(prices[what]) < rounds {
				return false
			}
		}
		return true
	}
	for i := 0; i < rounds || i < 10*rounds && !known(); i++ {
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
			_, err := c.Mutex("busy").TryLock(t.Context())
			if !errors.Is(err, dlock.ErrHeld) {
				return fmt.Errorf("two hold it: %w", err)
			}
			// naming the holder costs no further call
			if by := (*dlock.HeldError)(nil); !errors.As(err, &by) || by.Label == "" {
				return fmt.Errorf("the holder is not named: %w", err)
			}
			return nil
		})
		costs("Lock with a wait", func() error {
			got := make(chan error, 1)
			go func() { got <- lock(&l, c.Mutex("busy"))() }()
			await.That(t, "it waits", func() bool {
				q, err := other.Inspect(t.Context(), "busy")
				return err == nil && len(q.Waiters) == 1
			})
			if i == 0 {
				<-time.After(200 * time.Millisecond) // the first wait subscribes
			}
			if err := held.Unlock(t.Context()); err != nil {
				return err
			}
			return await.From(t, got)
		})
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for what, want := range want {
		n := slices.Sorted(slices.Values(prices[what]))
		if len(n) < rounds {
			t.Errorf("%s was late nearly always: %v", what, n)
		} else if got := n[len(n)/2]; got != want {
			t.Errorf("%s cost %d round trips, not %d: %v", what, got, want, prices[what])
		}
	}
}

// TestRedisCommandsOfAPair: the commands in the scripts of a Lock and an Unlock without contention.
func TestRedisCommandsOfAPair(t *testing.T) {
	s := service.StartOwn(t, Redis)
	c, _ := proxied(t, s, dlock.TTL(5*time.Minute))
	k := CLIOf(t, s)
	// A call that is answered late is sent once more, and leaves a tombstone. Another name has
	// none.
	const tries = 5
	for i, want := range []struct {
		what         string
		used         bool
		permits      int
		lock, unlock int
	}{
		{"a new name", false, 1, 4, 2}, // HMGET, EXISTS, HSET, PEXPIRE; HMGET, HSET
		{"a name that was used before", true, 1, 2, 2},
		{"a semaphore that was used before", true, 3, 2, 2},
	} {
		best := [2]int{1000, 1000}
		for try := range tries {
			m := c.Mutex(fmt.Sprint(i, " ", try))
			if want.permits > 1 {
				m = c.Semaphore(fmt.Sprint(i, " ", try), want.permits)
			}
			if want.used {
				redisUnlock(t, redisLock(t, m))
			}
			var l *dlock.Lease
			lock := k.WorkOf(func() { l = redisLock(t, m) })
			unlock := k.WorkOf(func() { redisUnlock(t, l) })
			best = [2]int{min(best[0], lock.Commands), min(best[1], unlock.Commands)}
		}
		if best != [2]int{want.lock, want.unlock} {
			t.Errorf("%s: Lock and Unlock run %d commands in their scripts; want %d and %d", want.what, best, want.lock, want.unlock)
		}
	}
}

func TestRedisWaitingCostsTimedLooks(t *testing.T) {
	s := service.StartOwn(t, Redis)
	// calls that depend on the TTL (renewals, each waiter once in a while) are far away
	holder, _ := proxied(t, s, dlock.TTL(time.Hour))
	c, p := proxied(t, s, dlock.TTL(time.Hour))
	held, err := holder.Mutex("long").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const waiters = 50
	for range waiters {
		wg.Go(func() {
			l, err := c.Mutex("long").Lock(await.Context(t))
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	counter := CLIOf(t, s)
	counter.listening(clientsOf(redisWaiting(t, holder, "long", waiters))...)
	var start time.Time
	var before, late, n, trips int64
	// A call that a busy machine answers late is sent once more, on a new connection that greets
	// the server first. A period without such a call counts, or else the last one. The second
	// before it is for what began earlier: replies to the last requests, and greetings.
	for range 4 {
		still := dropped(p)
		<-time.After(time.Second)
		start = time.Now()
		before, late = p.Counts().RoundTrips, dropped(p)
		n = int64(counter.WorkOf(func() { <-time.After(5 * time.Second) }).Calls)
		if trips = p.Counts().RoundTrips - before; dropped(p) == still {
			break
		}
	}
	// A client checks once in 0.8 to 1 second. Its subscription sends a ping every 3.
	took := time.Since(start)
	checks := int64(took/(800*time.Millisecond)) + 1
	copies := func() int64 { return dropped(p) - late }
	if !becomes(func() bool { return n <= checks+copies() }) {
		t.Errorf("%d waiters of one client asked %d times in %s; want a check each second, %d, and have %d copies", waiters, n, took, checks, copies())
	}
	if most := checks + int64(took/(3*time.Second)) + 1; !becomes(func() bool { return trips <= most+copies() }) {
		t.Errorf("%d waiters of one client made %d round trips in %s; want %d, and have %d copies", waiters, trips, took, most, copies())
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	await.All(t, &wg)
}

// Each hand-off is one message, which proves the hold, and an Unlock. Any other request that asks
// meanwhile was woken needlessly.
func TestRedisOneWakeUpPerHandOff(t *testing.T) {
	s := service.StartOwn(t, Redis)
	var waited []driver.ID // clients that listen until the end
	for _, clients := range []int{1, 8} {
		var all []*dlock.Client
		var lines []*netfault.Proxy
		for range clients {
			c, p := proxied(t, s, dlock.TTL(time.Hour))
			all, lines = append(all, c), append(lines, p)
		}
		for _, waiters := range []int{2, 16, 128} {
			t.Run(fmt.Sprintf("clients=%d,waiters=%d", clients, waiters), func(t *testing.T) {
				counter, name := CLIOf(t, s), t.Name()
				held, err := all[0].Mutex(name).Lock(await.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				// after a failure; the test's context has ended by then
				t.Cleanup(func() { await.All(t, &wg) })
				for i := range waiters {
					m := all[i%clients].Mutex(name)
					wg.Go(func() {
						l, err := m.Lock(await.Context(t))
						if t.Context().Err() != nil {
							return
						} else if err != nil {
							t.Error(err)
							return
						}
						if err := l.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
				waited = append(waited, clientsOf(redisWaiting(t, all[0], name, waiters))...)
				counter.listening(waited...)
				start, late := time.Now(), dropped(lines...)
				work := counter.WorkOf(func() {
					if err := held.Unlock(t.Context()); err != nil {
						t.Fatal(err)
					}
					await.All(t, &wg)
				})
				took := time.Since(start)
				if work.Messages != waiters {
					t.Errorf("%d messages for %d hand-offs", work.Messages, waiters)
				}
				checks := int64(clients) * (int64(took/(800*time.Millisecond)) + 1)
				copies := func() int64 { return dropped(lines...) - late }
				if n := int64(work.Calls); !becomes(func() bool { return n <= 1+int64(waiters)+checks+copies() }) {
					t.Errorf("%d calls for %d hand-offs in %s: want a release for each, %d checks at most, and have %d copies",
						n, waiters, took, checks, copies())
				}
			})
		}
	}
}

func TestRedisTenThousandLeases(t *testing.T) {
	s := service.StartOwn(t, Redis)
	const leases, ttl = 10_000, 30 * time.Second // a renewal of all may take a third of it
	var sent Pipelines
	c := over(t, s, netfault.NewProxy(), &sent, dlock.TTL(ttl))
	held := make([]*dlock.Lease, leases)
	idle := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for part := range 100 {
		wg.Go(func() {
			for i := part; i < leases; i += 100 {
				l, err := c.Mutex(fmt.Sprint("lease/", i)).Lock(await.Context(t))
				if err != nil {
					t.Error(err)
					return
				}
				held[i] = l
			}
		})
	}
	await.All(t, &wg)
	if t.Failed() {
		return
	}
	if n := runtime.NumGoroutine() - idle; n > leases/20 {
		// the proxy has some for each connection
		t.Errorf("%d leases have %d goroutines", leases, n)
	}
	before, start := sent.Load(), time.Now()
	<-time.After(ttl)
	rounds := int64(time.Since(start)/(ttl/3)) + 1
	if n := sent.Load() - before; n == 0 || n > 50*rounds { // one for 256 leases
		t.Errorf("%d leases made %d pipelines in %d thirds of their TTL; want 40 in each", leases, n, rounds)
	} else {
		t.Logf("%d leases made %d pipelines in %d thirds of their TTL", leases, n, rounds)
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
	await.All(t, &wg)
}

// redisChannel is the channel of a client.
func redisChannel(client driver.ID) string { return "dlock::" + client.String() }

// clientsOf returns the clients of the requests in a queue. Once they have held for a while, the
// clients of holders listen, as those of waiters do.
func clientsOf(q dlock.Queue) (clients []driver.ID) {
	for _, r := range slices.Concat(q.Holders, q.Waiters) {
		if id := clientOf(r); !slices.Contains(clients, id) {
			clients = append(clients, id)
		}
	}
	return clients
}

func clientOf(r dlock.Request) (id driver.ID) {
	if err := id.UnmarshalText([]byte(r.Client)); err != nil {
		panic(err)
	}
	return id
}

// subscribed waits until these clients are subscribed, each to its own channel, on one connection,
// and the server has no other subscription.
func (c *CLI) subscribed(clients ...driver.ID) {
	c.t.Helper()
	want := map[string]int64{} // subscribers of each channel
	for _, client := range clients {
		want[redisChannel(client)] = 1
	}
	await.That(c.t, fmt.Sprintf("%d clients are subscribed, once each", len(want)), func() bool {
		channels, err := c.PubSubChannels(c.Ctx, "*").Result()
		if err != nil || len(channels) != len(want) {
			return false
		}
		subscribers, err := c.PubSubNumSub(c.Ctx, channels...).Result()
		if err != nil || !maps.Equal(subscribers, want) {
			return false
		}
		connections, err := c.Do(c.Ctx, "CLIENT", "LIST", "TYPE", "pubsub").Text()
		return err == nil && strings.Count(connections, "\n") == len(want) // a line each
	})
}

// listening waits until these clients and no others are subscribed, and all waiters have asked
// after that. From then on only checks are left.
func (c *CLI) listening(clients ...driver.ID) {
	c.t.Helper()
	c.subscribed(clients...)
	// each request that asks moves the expiry of the key, however many calls are sent together
	asked := func() int64 { return c.calls("pexpire")[0] }
	last := asked()
	calm := 0
	await.That(c.t, "all have asked", func() bool {
		<-time.After(100 * time.Millisecond)
		now := asked()
		if calm++; now-last > int64(len(clients)) {
			calm = 0
		}
		last = now
		return calm == 4 // a machine that stands still is calm once
	})
}

// scripts returns how often scripts were run, for however many names at a time, and messages
// published on the server.
func (c *CLI) scripts() (run, published int64) {
	c.t.Helper()
	n := c.calls("evalsha", "eval", "publish")
	return n[0] + n[1], n[2]
}

// calls returns how often the server executed each of the commands.
func (c *CLI) calls(commands ...string) (n []int64) {
	c.t.Helper()
	info, err := c.Info(c.Ctx, "commandstats").Result()
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	for _, command := range commands {
		first, _, _ := strings.Cut(InfoField(info, "cmdstat_"+command), ",")
		calls, _ := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
		n = append(n, calls)
	}
	return n
}
