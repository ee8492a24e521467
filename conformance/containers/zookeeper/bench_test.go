package zookeeper

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// zkLock is the client library's lock, on so many connections that a test ends: each name has one
// of them.
func zkLock(t service.T, s *service.Server, connections int) func(name string) *zk.Lock {
	all := make(chan *zk.Conn, connections)
	for range connections {
		all <- zkOf(t, s, 30*time.Second)
	}
	var of sync.Map
	return func(name string) *zk.Lock {
		c, is := of.Load(name)
		if !is {
			next := <-all
			all <- next
			c, _ = of.LoadOrStore(name, next)
		}
		return zk.NewLock(c.(*zk.Conn), "/peer/"+name, zk.WorldACL(zk.PermAll))
	}
}

// BenchmarkZooKeeperPairs: uncontended Lock and Unlock of one client, beside those of the client
// library, which has a connection for each goroutine.
func BenchmarkZooKeeperPairs(b *testing.B) {
	s := service.StartOwn(b, ZooKeeper)
	ctx := b.Context()
	client := zkOpenDirect(b, s.URL, 30*time.Second)
	ours := func(name string) error {
		l, err := client.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		return l.Unlock(ctx)
	}
	for _, g := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("goroutines=%d", g), func(b *testing.B) {
			peer := zkLock(b, s, g)
			theirs := func(name string) error {
				l := peer(name)
				if err := l.Lock(); err != nil {
					return err
				}
				return l.Unlock()
			}
			steps.Pairs(b, g, theirs) // makes the names
			steps.Pairs(b, g, ours)
			var ratios, us, them []float64
			for range steps.Turns {
				t, o := steps.Pairs(b, g, theirs), steps.Pairs(b, g, ours)
				them, us, ratios = append(them, t), append(us, o), append(ratios, o/t)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(steps.Median(us), "pairs/s")
			b.ReportMetric(steps.Median(them), "zk.Lock-pairs/s")
			b.ReportMetric(steps.Median(ratios), "ratio")
		})
	}
}

// zkOpenDirect opens a client with nothing between it and the server.
func zkOpenDirect(t testing.TB, url string, ttl time.Duration) *dlock.Client {
	t.Helper()
	c, err := dlock.Open(t.Context(), url, dlock.TTL(ttl), dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// BenchmarkZooKeeperHandOff: the time from Unlock to the return of the next Lock, of waiters in
// eight clients, beside that of the client library's lock on as many connections.
func BenchmarkZooKeeperHandOff(b *testing.B) {
	const clients = 8
	s := service.StartOwn(b, ZooKeeper)
	var ours []*dlock.Client
	var theirs []func(string) *zk.Lock
	for range clients {
		ours = append(ours, zkOpenDirect(b, s.URL, 30*time.Second))
		theirs = append(theirs, zkLock(b, s, 1))
	}
	for _, n := range []int{2, 16, 128} {
		b.Run(fmt.Sprint("waiters=", n), func(b *testing.B) {
			var us, them []time.Duration
			var ratios []float64
			for range steps.Turns {
				t, o := steps.Median(zkHandOffs(b, theirs, n, time.Millisecond)), steps.Median(steps.HandOffs(b, ours, n, time.Millisecond))
				them, us, ratios = append(them, t), append(us, o), append(ratios, float64(o)/float64(t))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(steps.Median(us).Microseconds()), "µs")
			b.ReportMetric(float64(steps.Median(them).Microseconds()), "µs-zk.Lock")
			b.ReportMetric(steps.Median(ratios), "ratio")
		})
	}
}

// zkHandOffs is handOffs of the client library's lock. It takes no context: a waiter at the end
// gets the lock, and leaves.
func zkHandOffs(b *testing.B, clients []func(string) *zk.Lock, waiters int, hold time.Duration) []time.Duration {
	end := time.Now().Add(2 * steps.TurnTime)
	var mu sync.Mutex
	var took []time.Duration
	var left time.Time
	turn := make(chan struct{}) // closed by the next holder
	over := make(chan struct{})
	time.AfterFunc(2*steps.TurnTime, func() { close(over) })
	var wg sync.WaitGroup
	for i := range waiters {
		lock := clients[i%len(clients)]
		wg.Go(func() {
			for time.Now().Before(end) {
				l := lock("hand-off")
				if err := l.Lock(); err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				late := now.After(end)
				mu.Lock()
				if !left.IsZero() && !late {
					took = append(took, now.Sub(left))
				}
				close(turn)
				turn = make(chan struct{})
				next := turn
				mu.Unlock()
				if !late {
					<-time.After(hold)
				}
				mu.Lock()
				left = time.Now()
				mu.Unlock()
				if err := l.Unlock(); err != nil {
					b.Error(err)
				}
				select {
				case <-next:
				case <-over:
				}
			}
		})
	}
	wg.Wait()
	return took
}
