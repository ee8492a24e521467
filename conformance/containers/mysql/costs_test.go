package mysql

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/netfault"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// TestMySQLCosts counts.
func TestMySQLCosts(t *testing.T) {
	onShared(t, func(t *testing.T, s *service.Server) {
		inTurn(t, migrated(t, s),
			part{"round trips", mysqlRoundTrips},
			part{"a hand-off", mysqlHandOff},
			part{"short waits", mysqlShortWaits},
		)
		abreast(t, s,
			part{"waiting", mysqlWaiting(1)},
			part{"waiting under many names", mysqlWaiting(16)},
			part{"holding", mysqlHolding},
		)
	})
}

// trips returns how many round trips f makes, but for those of connections that it opens.
func trips(p *netfault.Proxy, f func()) int64 {
	const greeting = 3 // round trips of a new connection, at most
	before := p.Counts()
	f()
	after := p.Counts()
	return after.RoundTrips - before.RoundTrips - greeting*(after.Dialled-before.Dialled)
}

// ownSide opens the driver on connections of its own, behind a proxy.
func ownSide(t service.T, s *service.Server, params string) (driver.Backend, *netfault.Proxy) {
	t.Helper()
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	return byURL(t, behind(t, s, p, params)), p
}

// mysqlRoundTrips: Lock is one, Unlock is one, re-entry none, on the driver's own connections and
// on any pool.
func mysqlRoundTrips(t *service.Trial, s *service.Server) {
	own, line := ownSide(t, s, "")
	pool, strange := sideOf(t, s), hostile(mysqlOf(t, s)).side(t, netfault.NewProxy(), mysql.Options{})
	for _, x := range []struct {
		what string
		b    driver.Backend
		line *netfault.Proxy
	}{{"own connections", own, line}, {"a pool of the user's", pool, pool.line}, {"a pool with other settings", strange, strange.line}} {
		c := steps.ClientOf(t, x.b, dlock.TTL(10*time.Minute))
		const rounds = 50
		m := c.Mutex("trips/" + x.what)
		once := func() {
			l, err := m.Lock(await.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			for range 3 { // re-entry is a counter
				again, err := m.Lock(l.Context(t.Context()))
				if err != nil {
					t.Fatal(err)
				}
				if err := again.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		once()
		// the two are for what a busy machine may have repeated; the rest asks, twice a second,
		// which holds were ended by force
		begun := time.Now()
		more := func() int64 { return 2 + 1 + int64(time.Since(begun)/(500*time.Millisecond)) }
		n := trips(x.line, func() {
			for range rounds {
				once()
			}
		})
		t.Logf("%s: %d round trips for %d times Lock, re-entry and Unlock", x.what, n, rounds)
		if n > 2*rounds+more() {
			t.Errorf("%s: Lock and Unlock made %d round trips in %d rounds; want %d", x.what, n, rounds, 2*rounds)
		}
		held, err := m.Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		begun = time.Now()
		n = trips(x.line, func() {
			for range rounds {
				if _, err := m.TryLock(t.Context()); err == nil && held.Err() == nil {
					service.Strict(t).Fatal("it is held")
				}
			}
		})
		if n > rounds+more() {
			t.Errorf("%s: TryLock of what is held made %d round trips in %d rounds; want %d", x.what, n, rounds, rounds)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// spoken counts the calls that a client makes while f runs, by the procedure.
func spoken(t service.T, p *netfault.Proxy, f func()) map[string]int {
	t.Helper()
	r := p.Record()
	f()
	calls := map[string]int{}
	for _, sent := range r.End() {
		for _, name := range procedureCall.FindAllSubmatch(sent, -1) {
			calls[string(name[1])]++
		}
	}
	return calls
}

var procedureCall = regexp.MustCompile(`(?i)CALL\s+(dlock_\w+)`)

// mysqlHandOff: one who waits asks once, whoever wakes it: the read that finds the grant of another
// client proves it.
func mysqlHandOff(t *service.Trial, s *service.Server) {
	const waiters = 16
	for what, clients := range map[string]int{"one client": 1, "two clients": 2} {
		probe := sideOf(t, s)
		var sides []*poolSide
		for range clients { // whoever misses the window comes again, and would be counted twice
			sides = append(sides, mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{GrantWindow: time.Minute}))
		}
		name := "hand-off/" + what
		first := steps.Waiting(sides[0], name, time.Minute)
		steps.Acquired(t, sides[0], first)
		var wg sync.WaitGroup
		pass := make(chan struct{}, waiters) // who fails takes none
		calls := spoken(t, sides[clients-1].line, func() {
			for i := range waiters {
				wg.Go(func() {
					b := sides[(i+1)%clients]
					r := steps.Waiting(b, name, time.Minute)
					steps.Acquired(t, b, r)
					<-pass
					steps.Released(t, b, r)
				})
				await.That(t, "it waits", func() bool { return len(steps.Queue(t, probe, name).Waiters()) == i+1 })
			}
			steps.Released(t, sides[0], first)
			for range waiters {
				pass <- struct{}{}
			}
			await.All(t, &wg)
		})
		own := waiters / clients
		t.Logf("%s, %d of their waiters: %v", what, own, calls)
		// Each arrives and goes. A call that a busy machine does not answer in time is repeated.
		if n := calls["dlock_acquire"]; n < own || n > own+own/4 {
			t.Errorf("%s: %d who wait made %d calls of dlock_acquire; want %d", what, own, n, own)
		}
		want := own
		if clients == 1 {
			want++ // the first holder's
		}
		if n := calls["dlock_release"]; n != want {
			t.Errorf("%s: %d calls of dlock_release; want %d", what, n, want)
		}
	}
}

// queueUp lets n requests of the client wait for a name, until stop.
func queueUp(t testing.TB, b driver.Backend, probe driver.Backend, name string, n int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := b.Acquire(ctx, steps.Waiting(b, name, time.Minute)); err == nil {
				service.Strict(t).Error("one of those who wait was granted")
			}
		})
	}
	await.That(t, "they wait", func() bool { return len(steps.Queue(t, probe, name).Waiters()) == n })
	return func() { cancel(); await.All(t, &wg) }
}

// mysqlShortWaits: what a wait costs in its first second.
func mysqlShortWaits(t *service.Trial, s *service.Server) {
	holder := sideOf(t, s)
	steps.Acquired(t, holder, steps.Asked(holder, "short", time.Hour))
	b, line := ownSide(t, s, "")
	calls := spoken(t, line, func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Acquire(ctx, steps.Waiting(b, "short", time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v", err)
		}
	})
	t.Logf("a wait of a second: %v", calls)
	// 20 in the first 20 ms, then each after a twentieth of the time
	if n := calls["dlock_look"]; n > 100 {
		t.Errorf("a wait of a second reads the queue %d times", n)
	}
	if n := calls["dlock_keep"]; n > 1 {
		t.Errorf("a wait of a second is kept alive by %d statements", n)
	}
}

// mysqlWaiting: 128 who wait, under so many names, cost a client two connections, two for bells,
// and a few reads a second, as one does.
func mysqlWaiting(names int) func(*service.Trial, *service.Server) {
	return func(t *service.Trial, s *service.Server) {
		const waiters, connections = 128, 2 + 2
		holder := sideOf(t, s)
		b, line := ownSide(t, s, "")
		var stops []func()
		for i := range names {
			name := fmt.Sprint("waiting/", i)
			steps.Acquired(t, holder, steps.Asked(holder, name, time.Hour))
			stops = append(stops, queueUp(t, b, holder, name, waiters/names))
		}
		await.That(t, "other connections are given up", func() bool { return line.Counts().Open <= connections })
		<-time.After(2500 * time.Millisecond) // who has just come polls more often
		const span = 4 * time.Second
		seen, before, start := map[int]int{}, line.Counts(), time.Now()
		checks := 0
		for ; time.Since(start) < span; checks++ {
			seen[line.Counts().Open]++
			<-time.After(10 * time.Millisecond)
		}
		most := 0 // but for moments: while one that was given up closes, another may be there
		for open, n := range seen {
			if n > checks/20 {
				most = max(most, open)
			}
		}
		took, after := time.Since(start), line.Counts()
		rate := float64(after.RoundTrips-before.RoundTrips) / took.Seconds()
		t.Logf("%d waiters for %d names: %d connections, %.1f round trips a second", waiters, names, most, rate)
		if most > connections {
			t.Errorf("%d waiters use %d connections", waiters, most)
		}
		// ten polls and one for those who have expired; the rest is for keeping alive, and for a
		// busy machine
		if rate > 14 {
			t.Errorf("%d waiters for %d names make %.1f round trips a second", waiters, names, rate)
		}
		for _, stop := range stops {
			stop()
		}
		idle := line.Counts().RoundTrips
		await.That(t, "nothing goes on any more", func() bool {
			was := idle
			idle = line.Counts().RoundTrips
			<-time.After(300 * time.Millisecond)
			return line.Counts().RoundTrips == idle && was == idle
		})
	}
}

// mysqlHolding: a client renews 10,000 leases with one statement each TTL/3, and asks twice a
// second which of them were ended by force.
func mysqlHolding(t *service.Trial, s *service.Server) {
	many, ttl := conformance.Longer(1000), 20*time.Second // a slow server takes seconds for so many
	if conformance.Long() {
		ttl = 30 * time.Second
	}
	b, line := ownSide(t, s, "")
	c := steps.ClientOf(t, b, dlock.TTL(ttl))
	leases := steps.HoldMany(t, c, many)
	// the first renewal may be in parts: that of leases that are younger than it
	<-time.After(ttl / 3)
	const periods = 2
	asked := int(periods * ttl / 3 / (500 * time.Millisecond))
	// what is not answered in time is repeated; a client that renews too often does so each time
	for try := range 3 {
		calls := spoken(t, line, func() { <-time.After(periods * ttl / 3) })
		t.Logf("%d leases: %v in %d times TTL/3", many, calls, periods)
		if n := calls["dlock_renew"]; n >= periods-1 && n <= periods+1 && len(calls) == 2 && calls["dlock_ended"] <= asked+1 {
			break
		}
		if try == 2 {
			t.Errorf("%d leases make the calls %v in %d times TTL/3; want %d of dlock_renew and %d of dlock_ended", many, calls, periods, periods, asked)
		}
	}
	steps.MustLive(t, leases)
}
