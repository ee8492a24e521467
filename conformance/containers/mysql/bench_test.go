package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
)

// BenchmarkMySQLTimes compares times within one run, each kind of server alone.
func BenchmarkMySQLTimes(b *testing.B) {
	for _, k := range mysqlKinds {
		s := migrated(b, service.StartOwn(b, k))
		b.Run(k.Name+"/hand-offs", func(b *testing.B) { mysqlRates(b, s) })
		b.Run(k.Name+"/wake-up", func(b *testing.B) { mysqlWakeUp(b, s) })
	}
}

// passing counts how often n goroutines of one client pass a lock on within d, from hand to hand:
// each waits behind the others.
func passing(t testing.TB, s *service.Server, name string, n int, d time.Duration) float64 {
	t.Helper()
	b, _ := ownSide(t, s, "")
	var done atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				r := steps.Waiting(b, name, time.Minute)
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
	await.That(t, "it is warm", func() bool { return done.Load() >= 10 })
	before, start := done.Load(), time.Now()
	<-time.After(d)
	return float64(done.Load()-before) / time.Since(start).Seconds()
}

// polling is what tables of locks are usually like: n connections look at the row with FOR UPDATE
// every 10 ms, and who finds it free takes it.
func polling(t testing.TB, s *service.Server, n int, d time.Duration) float64 {
	t.Helper()
	db := mysqlOf(t, s).pool(t)
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

// mysqlRates: a queue serves 128 about as fast as two, and much faster than if they polled. They
// are measured in turns.
func mysqlRates(b *testing.B, s *service.Server) {
	const span = time.Second
	var few, many, polled, growth, gain []float64
	for i := range 5 {
		f := passing(b, s, fmt.Sprint("rates/few/", i), 2, span)
		m := passing(b, s, fmt.Sprint("rates/many/", i), 128, span)
		p := polling(b, s, 128, span)
		few, many, polled, growth, gain = append(few, f), append(many, m), append(polled, p), append(growth, m/f), append(gain, m/p)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(steps.Median(few), "hand-offs/s-of-2")
	b.ReportMetric(steps.Median(many), "hand-offs/s-of-128")
	b.ReportMetric(steps.Median(polled), "hand-offs/s-of-128-that-poll")
	b.ReportMetric(steps.Median(growth), "128/2")
	b.ReportMetric(steps.Median(gain), "128/polling")
}

// mysqlWakeUp: how long a lock is nobody's within a client, and between two, which only the server
// connects.
func mysqlWakeUp(b *testing.B, s *service.Server) {
	one, two := sideOf(b, s), sideOf(b, s)
	b.ReportMetric(0, "ns/op")
	for what, other := range map[string]*poolSide{"one-client": one, "two-clients": two} {
		var took []time.Duration
		for i := range 60 {
			took = append(took, wakeUp(b, one, other, "wake-up/"+what, time.Duration(i%15)*5*time.Millisecond))
		}
		b.ReportMetric(float64(steps.Median(took).Microseconds()), "µs-"+what)
	}
}

// wakeUp passes a lock from a to a waiter of b that has waited for a while, and returns how long
// that takes.
func wakeUp(t testing.TB, a, b driver.Backend, name string, while time.Duration) time.Duration {
	t.Helper()
	r, next := steps.Waiting(a, name, time.Minute), steps.Waiting(b, name, time.Minute)
	steps.Acquired(t, a, r)
	var at time.Time
	var wg sync.WaitGroup
	wg.Go(func() { steps.Acquired(t, b, next); at = time.Now() })
	await.That(t, "it waits", func() bool { return len(steps.Queue(t, a, name).Waiters()) == 1 })
	<-time.After(while) // the read may be at any point of its interval
	start := time.Now()
	steps.Released(t, a, r)
	wg.Wait()
	steps.Released(t, b, next)
	return at.Sub(start)
}

// BenchmarkMySQLPairs measures Lock and Unlock of names that nobody else wants, against GET_LOCK
// and RELEASE_LOCK, which write nothing and pin a connection each.
func BenchmarkMySQLPairs(b *testing.B) {
	for _, k := range mysqlKinds {
		s := migrated(b, service.StartOwn(b, k))
		for _, g := range []int{1, 16, 256} {
			side, _ := ownSide(b, s, "")
			db := mysqlOf(b, s).pool(b)
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
				r := steps.Asked(side, name, time.Minute)
				if _, err := side.Acquire(b.Context(), r); err != nil {
					return err
				}
				return side.Release(b.Context(), r)
			}
			b.Run(fmt.Sprint(k.Name, "/goroutines=", g), func(b *testing.B) {
				var dlocks, gets, ratios []float64
				for range steps.Turns {
					theirs, own := steps.Pairs(b, g, named), steps.Pairs(b, g, ours)
					gets, dlocks, ratios = append(gets, theirs), append(dlocks, own), append(ratios, own/theirs)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(steps.Median(dlocks), "pairs/s")
				b.ReportMetric(steps.Median(gets), "GET_LOCK-pairs/s")
				b.ReportMetric(steps.Median(ratios), "ratio")
			})
		}
	}
}
