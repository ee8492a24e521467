package containers

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// TestMySQLCosts counts.
func TestMySQLCosts(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *Server) {
		migrated(t, s)
		t.Run("round trips", func(t *testing.T) { mysqlRoundTrips(t, s) })
		t.Run("a hand-off", func(t *testing.T) { mysqlHandOff(t, s) })
		t.Run("waiting", func(t *testing.T) { mysqlWaiting(t, s) })
		t.Run("holding", func(t *testing.T) { mysqlHolding(t, s) })
	})
}

// BenchmarkMySQLTimes compares times within one run, each kind of server alone.
func BenchmarkMySQLTimes(b *testing.B) {
	for _, k := range mysqlKinds {
		s := migrated(b, StartOwn(b, k))
		b.Run(k.Name+"/hand-offs", func(b *testing.B) { mysqlRates(b, s) })
		b.Run(k.Name+"/wake-up", func(b *testing.B) { mysqlWakeUp(b, s) })
	}
}

// trips returns how many round trips f makes, but for those of connections that it opens.
func trips(p *Proxy, f func()) int64 {
	const greeting = 3 // round trips of a new connection, at most
	before := p.Counts()
	f()
	after := p.Counts()
	return after.RoundTrips - before.RoundTrips - greeting*(after.Dialled-before.Dialled)
}

// ownSide opens the driver on connections of its own, behind a proxy.
func (s *Server) ownSide(t T, params string) (driver.Backend, *Proxy) {
	t.Helper()
	p := NewProxy()
	t.Cleanup(p.Close)
	return byURL(t, s.behind(t, p, params)), p
}

// mysqlRoundTrips: Lock is one, Unlock is one, re-entry none, on the driver's own connections and on any pool.
func mysqlRoundTrips(t *testing.T, s *Server) {
	own, line := s.ownSide(t, "")
	pool, strange := s.side(t), hostile(s.mysql(t)).side(t, NewProxy(), mysql.Options{})
	for _, x := range []struct {
		what string
		b    driver.Backend
		line *Proxy
	}{{"own connections", own, line}, {"a pool of the user's", pool, pool.line}, {"a pool with other settings", strange, strange.line}} {
		c := clientOf(t, x.b, dlock.TTL(10*time.Minute))
		const rounds = 50
		m := c.Mutex("trips/" + x.what)
		once := func() {
			l, err := m.Lock(t.Context())
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
		n := trips(x.line, func() {
			for range rounds {
				once()
			}
		})
		t.Logf("%s: %d round trips for %d times Lock, re-entry and Unlock", x.what, n, rounds)
		if n > 2*rounds+2 { // the two are for what a busy machine may have repeated
			t.Errorf("%s: Lock and Unlock made %d round trips in %d rounds; want %d", x.what, n, rounds, 2*rounds)
		}
		held, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n = trips(x.line, func() {
			for range rounds {
				if _, err := m.TryLock(t.Context()); err == nil {
					t.Fatal("it is held")
				}
			}
		})
		if n > rounds+2 {
			t.Errorf("%s: TryLock of what is held made %d round trips in %d rounds; want %d", x.what, n, rounds, rounds)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// spoken counts the calls that a client makes while f runs, by the procedure.
func spoken(t T, p *Proxy, f func()) map[string]int {
	t.Helper()
	r := p.Record()
	f()
	calls := map[string]int{}
	for _, sent := range r.end() {
		for _, name := range procedureCall.FindAllSubmatch(sent, -1) {
			calls[string(name[1])]++
		}
	}
	return calls
}

var procedureCall = regexp.MustCompile(`(?i)CALL\s+(dlock_\w+)`)

// mysqlHandOff: one who waits asks once more if another client wakes it, and not at all if it was its own, and nobody else does.
func mysqlHandOff(t *testing.T, s *Server) {
	const waiters = 16
	for what, c := range map[string]struct {
		clients, confirm int
	}{"one client": {1, 0}, "two clients": {2, 1}} {
		probe := s.side(t)
		var sides []*poolSide
		for range c.clients { // whoever misses the window comes again, and would be counted twice
			sides = append(sides, s.mysql(t).side(t, NewProxy(), mysql.Options{GrantWindow: time.Minute}))
		}
		name := "hand-off/" + what
		first := waiting(sides[0], name, time.Minute)
		acquired(t, sides[0], first)
		var wg sync.WaitGroup
		pass := make(chan struct{})
		calls := spoken(t, sides[c.clients-1].line, func() {
			for i := range waiters {
				wg.Go(func() {
					b := sides[(i+1)%c.clients]
					r := waiting(b, name, time.Minute)
					acquired(t, b, r)
					<-pass
					released(t, b, r)
				})
				await(t, "it waits", func() bool { return len(queue(t, probe, name).Waiters()) == i+1 })
			}
			released(t, sides[0], first)
			for range waiters {
				pass <- struct{}{}
			}
			wg.Wait()
		})
		own := waiters / c.clients
		t.Logf("%s, %d of their waiters: %v", what, own, calls)
		// Each arrives, confirms if it must, and goes. A call that a busy machine does not answer in time is repeated.
		if n, want := calls["dlock_acquire"], own*(1+c.confirm); n < want || n > want+own/4 {
			t.Errorf("%s: %d who wait made %d calls of dlock_acquire; want %d", what, own, n, want)
		}
		want := own
		if c.clients == 1 {
			want++ // the first holder's
		}
		if n := calls["dlock_release"]; n != want {
			t.Errorf("%s: %d calls of dlock_release; want %d", what, n, want)
		}
	}
}

// queueUp lets n requests of the client wait for a name, until stop.
func queueUp(t *testing.T, b driver.Backend, probe driver.Backend, name string, n int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := b.Acquire(ctx, waiting(b, name, time.Minute)); err == nil {
				t.Error("one of those who wait was granted")
			}
		})
	}
	await(t, "they wait", func() bool { return len(queue(t, probe, name).Waiters()) == n })
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// mysqlWaiting: 128 who wait cost a client two connections and a few reads a second, as one does.
func mysqlWaiting(t *testing.T, s *Server) {
	holder := s.side(t)
	for _, names := range []int{1, 16} {
		const waiters = 128
		b, line := s.ownSide(t, "")
		var stops []func()
		for i := range names {
			name := fmt.Sprint("waiting/", names, "/", i)
			acquired(t, holder, asked(holder, name, time.Hour))
			stops = append(stops, queueUp(t, b, holder, name, waiters/names))
		}
		await(t, "connections beyond two are given up", func() bool { return line.Counts().Open <= 2 })
		<-time.After(2500 * time.Millisecond) // who has just come asks more often
		const span = 4 * time.Second
		seen, before, start := map[int]int{}, line.Counts(), time.Now()
		looks := 0
		for ; time.Since(start) < span; looks++ {
			seen[line.Counts().Open]++
			<-time.After(10 * time.Millisecond)
		}
		most := 0 // but for moments: while one that was given up closes, another may be there
		for open, n := range seen {
			if n > looks/20 {
				most = max(most, open)
			}
		}
		took, after := time.Since(start), line.Counts()
		rate := float64(after.RoundTrips-before.RoundTrips) / took.Seconds()
		t.Logf("%d waiters for %d names: %d connections, %.1f round trips a second", waiters, names, most, rate)
		if most > 2 {
			t.Errorf("%d waiters use %d connections", waiters, most)
		}
		if rate > 14 { // ten reads and one for those who have expired; the rest is for keeping alive, and for a busy machine
			t.Errorf("%d waiters for %d names make %.1f round trips a second", waiters, names, rate)
		}
		for _, stop := range stops {
			stop()
		}
		idle := line.Counts().RoundTrips
		await(t, "nothing goes on any more", func() bool {
			was := idle
			idle = line.Counts().RoundTrips
			<-time.After(300 * time.Millisecond)
			return line.Counts().RoundTrips == idle && was == idle
		})
	}
}

// mysqlHolding: a client renews 10,000 leases with one statement each TTL/3.
func mysqlHolding(t *testing.T, s *Server) {
	const many, ttl = 10_000, 30 * time.Second // a slow server takes seconds for so many
	b, line := s.ownSide(t, "")
	c := clientOf(t, b, dlock.TTL(ttl))
	leases := holdMany(t, c, many)
	<-time.After(ttl / 3) // the first renewal may be in parts: that of leases that are younger than it
	const periods = 2
	for try := range 3 { // what is not answered in time is repeated; a client that renews too often does so each time
		calls := spoken(t, line, func() { <-time.After(periods * ttl / 3) })
		t.Logf("%d leases: %v in %d times TTL/3", many, calls, periods)
		if n := calls["dlock_renew"]; n >= periods-1 && n <= periods+1 && len(calls) == 1 {
			break
		}
		if try == 2 {
			t.Errorf("%d leases make the calls %v in %d times TTL/3; want %d of dlock_renew", many, calls, periods, periods)
		}
	}
	mustLive(t, leases)
}

// passing counts how often n goroutines of one client pass a lock on within d, from hand to hand: each waits behind the others.
func passing(t testing.TB, s *Server, name string, n int, d time.Duration) float64 {
	t.Helper()
	b, _ := s.ownSide(t, "")
	var done atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				r := waiting(b, name, time.Minute)
				if _, err := b.Acquire(ctx, r); err != nil {
					continue
				}
				done.Add(1)
				if err := b.Release(context.Background(), r); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	rate := perSecond(t, &done, d)
	cancel()
	wg.Wait()
	return rate
}

// perSecond waits until something has been done a few times, and then returns its rate over d.
func perSecond(t testing.TB, done *atomic.Int64, d time.Duration) float64 {
	t.Helper()
	await(t, "it is warm", func() bool { return done.Load() >= 10 })
	before, start := done.Load(), time.Now()
	<-time.After(d)
	return float64(done.Load()-before) / time.Since(start).Seconds()
}

// polling is what tables of locks are usually like: n connections look at the row with FOR UPDATE every 10 ms, and who finds it free takes it.
func polling(t testing.TB, s *Server, n int, d time.Duration) float64 {
	t.Helper()
	db := s.mysql(t).pool(t)
	db.SetMaxIdleConns(n)
	execute(t, db, "CREATE TABLE IF NOT EXISTS polled (name VARBINARY(255) PRIMARY KEY, holder BIGINT NOT NULL)", "REPLACE INTO polled VALUES ('a', 0)")
	var done, turn atomic.Int64 // turn: who had the last one, and stands back until another had
	ctx, cancel := context.WithCancel(t.Context())
	take := func(me int64) (bool, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		defer tx.Rollback()
		var holder int64
		if err := tx.QueryRow("SELECT holder FROM polled WHERE name = 'a' FOR UPDATE").Scan(&holder); err != nil || holder != 0 {
			return false, err
		}
		if _, err := tx.Exec("UPDATE polled SET holder = ? WHERE name = 'a'", me); err != nil {
			return false, err
		}
		return true, tx.Commit()
	}
	var wg sync.WaitGroup
	for i := range n {
		me := int64(i + 1)
		wg.Go(func() {
			for ctx.Err() == nil {
				if turn.Load() != me {
					if ok, _ := take(me); ok {
						turn.Store(me)
						done.Add(1)
						db.ExecContext(ctx, "UPDATE polled SET holder = 0 WHERE name = 'a'")
						continue
					}
				}
				<-time.After(10 * time.Millisecond)
			}
		})
	}
	rate := perSecond(t, &done, d)
	cancel()
	wg.Wait()
	return rate
}

// mysqlRates: a queue serves 128 about as fast as two, and much faster than if they polled. They are measured in turns.
func mysqlRates(b *testing.B, s *Server) {
	const span = time.Second
	var few, many, polled, growth, gain []float64
	for i := range 5 {
		f := passing(b, s, fmt.Sprint("rates/few/", i), 2, span)
		m := passing(b, s, fmt.Sprint("rates/many/", i), 128, span)
		p := polling(b, s, 128, span)
		few, many, polled, growth, gain = append(few, f), append(many, m), append(polled, p), append(growth, m/f), append(gain, m/p)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(few), "hand-offs/s-of-2")
	b.ReportMetric(median(many), "hand-offs/s-of-128")
	b.ReportMetric(median(polled), "hand-offs/s-of-128-that-poll")
	b.ReportMetric(median(growth), "128/2")
	b.ReportMetric(median(gain), "128/polling")
}

// mysqlWakeUp: how long a lock is nobody's within a client, and between two, which only the server connects.
func mysqlWakeUp(b *testing.B, s *Server) {
	one, two := s.side(b), s.side(b)
	b.ReportMetric(0, "ns/op")
	for what, other := range map[string]*poolSide{"one-client": one, "two-clients": two} {
		var took []time.Duration
		for i := range 60 {
			took = append(took, wakeUp(b, one, other, "wake-up/"+what, time.Duration(i%15)*5*time.Millisecond))
		}
		b.ReportMetric(float64(median(took).Microseconds()), "µs-"+what)
	}
}

// wakeUp passes a lock from a to a waiter of b that has waited for a while, and returns how long that takes.
func wakeUp(t testing.TB, a, b driver.Backend, name string, while time.Duration) time.Duration {
	t.Helper()
	r, next := waiting(a, name, time.Minute), waiting(b, name, time.Minute)
	acquired(t, a, r)
	var at time.Time
	var wg sync.WaitGroup
	wg.Go(func() { acquired(t, b, next); at = time.Now() })
	await(t, "it waits", func() bool { return len(queue(t, a, name).Waiters()) == 1 })
	<-time.After(while) // the read may be at any point of its interval
	start := time.Now()
	released(t, a, r)
	wg.Wait()
	released(t, b, next)
	return at.Sub(start)
}

// BenchmarkMySQLPairs measures Lock and Unlock of names that nobody else wants, against GET_LOCK and RELEASE_LOCK, which write nothing and pin a
// connection each.
func BenchmarkMySQLPairs(b *testing.B) {
	for _, k := range mysqlKinds {
		s := migrated(b, StartOwn(b, k))
		for _, g := range []int{1, 16, 256} {
			side, _ := s.ownSide(b, "")
			db := s.mysql(b).pool(b)
			db.SetMaxIdleConns(g)
			var conns sync.Map // by name
			named := func(name string) error {
				c, ok := conns.Load(name)
				if !ok {
					conn, err := db.Conn(b.Context())
					if err != nil {
						return err
					}
					b.Cleanup(func() { conn.Close() })
					c = conn
					conns.Store(name, c)
				}
				var got int
				if err := c.(*sql.Conn).QueryRowContext(b.Context(), fmt.Sprintf("SELECT GET_LOCK('%s', 0)", name)).Scan(&got); err != nil || got != 1 {
					return fmt.Errorf("GET_LOCK: %d, %w", got, err)
				}
				_, err := c.(*sql.Conn).ExecContext(b.Context(), fmt.Sprintf("DO RELEASE_LOCK('%s')", name))
				return err
			}
			ours := func(name string) error {
				r := asked(side, name, time.Minute)
				if _, err := side.Acquire(b.Context(), r); err != nil {
					return err
				}
				return side.Release(b.Context(), r)
			}
			b.Run(fmt.Sprint(k.Name, "/goroutines=", g), func(b *testing.B) {
				var dlocks, gets, ratios []float64
				for range turns {
					theirs, own := pairs(b, g, named), pairs(b, g, ours)
					gets, dlocks, ratios = append(gets, theirs), append(dlocks, own), append(ratios, own/theirs)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(dlocks), "pairs/s")
				b.ReportMetric(median(gets), "GET_LOCK-pairs/s")
				b.ReportMetric(median(ratios), "ratio")
			})
		}
	}
}
