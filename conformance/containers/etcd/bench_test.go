package etcd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver/etcd"
)

// locker is one of several contenders for a lock: it locks, and returns the function that unlocks.
type locker func(ctx context.Context) (unlock func() error, err error)

// etcdLockers returns n lockers of dlock and n of the recipe in etcd's client library, which needs
// a session for each, spread over the given number of clients of either kind.
func etcdLockers(b *testing.B, s *service.Server, clients, n int, name string) (ours, theirs []locker) {
	b.Helper()
	for range clients {
		client := etcdOf(b, s)
		d, err := etcd.New(client, etcd.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { d.Close() })
		c := steps.ClientOf(b, d)
		other := etcdOf(b, s)
		for range n / clients {
			ours = append(ours, ofDlock(c, name))
			theirs = append(theirs, ofRecipe(b, other, name))
		}
	}
	return ours, theirs
}

func ofDlock(c *dlock.Client, name string) locker {
	m := c.Mutex(name)
	return func(ctx context.Context) (func() error, error) {
		l, err := m.Lock(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Unlock(context.Background()) }, nil
	}
}

func ofRecipe(b *testing.B, c *clientv3.Client, name string) locker {
	session, err := concurrency.NewSession(c, concurrency.WithTTL(30))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { session.Close() })
	m := concurrency.NewMutex(session, "recipe/"+name)
	return func(ctx context.Context) (func() error, error) {
		if err := m.Lock(ctx); err != nil {
			return nil, err
		}
		return func() error { return m.Unlock(context.Background()) }, nil
	}
}

// relay lets the lockers take turns for a while, and returns the times from the call of unlock to
// the return of the next lock, and the number of hand-offs per second.
func relay(b *testing.B, lockers []locker, hold time.Duration) (took []time.Duration, rate float64) {
	ctx, stop := context.WithTimeout(b.Context(), 2*steps.TurnTime)
	defer stop()
	var mu sync.Mutex
	var left time.Time
	var wg sync.WaitGroup
	start := time.Now()
	for _, lock := range lockers {
		wg.Go(func() {
			for ctx.Err() == nil {
				unlock, err := lock(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				if !left.IsZero() && ctx.Err() == nil {
					took = append(took, time.Since(left))
				}
				mu.Unlock()
				if hold > 0 {
					<-time.After(hold)
				}
				mu.Lock()
				left = time.Now()
				mu.Unlock()
				if err := unlock(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	<-ctx.Done()
	mu.Lock()
	n := len(took)
	rate = float64(n) / time.Since(start).Seconds()
	mu.Unlock()
	wg.Wait()
	return took[:n], rate
}

// writes lets other clients write to the server until stop.
func writes(b *testing.B, s *service.Server) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	c := etcdOf(b, s)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c.Put(ctx, fmt.Sprint("others/", i), "x")
				<-time.After(time.Millisecond)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// BenchmarkEtcdHandOff passes a lock on among few lockers while other clients write, and among
// many.
func BenchmarkEtcdHandOff(b *testing.B) {
	s := service.StartOwn(b, Etcd)
	for _, clients := range []int{1, 2} {
		b.Run(fmt.Sprint("waiters=2,writes/clients=", clients), func(b *testing.B) {
			ours, theirs := etcdLockers(b, s, clients, 2, fmt.Sprint("few/", clients))
			stop := writes(b, s)
			defer stop()
			var own, other []time.Duration
			var ratio []float64
			for range steps.Turns {
				o, _ := relay(b, ours, time.Millisecond)
				t, _ := relay(b, theirs, time.Millisecond)
				own, other = append(own, steps.Median(o)), append(other, steps.Median(t))
				ratio = append(ratio, float64(steps.Median(o))/float64(steps.Median(t)))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(steps.Median(own).Microseconds()), "µs")
			b.ReportMetric(float64(steps.Median(other).Microseconds()), "µs-recipe")
			b.ReportMetric(steps.Median(ratio), "ratio")
		})
	}
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprint("waiters=128/clients=", clients), func(b *testing.B) {
			ours, theirs := etcdLockers(b, s, clients, 128, fmt.Sprint("many/", clients))
			var own, other, ratio []float64
			for range steps.Turns {
				_, o := relay(b, ours, 0)
				_, t := relay(b, theirs, 0)
				own, other, ratio = append(own, o), append(other, t), append(ratio, o/t)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(steps.Median(own), "hand-offs/s")
			b.ReportMetric(steps.Median(other), "hand-offs/s-recipe")
			b.ReportMetric(steps.Median(ratio), "ratio")
		})
	}
}

// BenchmarkEtcdPairs measures Lock and Unlock of uncontended names.
func BenchmarkEtcdPairs(b *testing.B) {
	s := service.StartOwn(b, Etcd)
	for _, g := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("goroutines=", g), func(b *testing.B) {
			d, err := etcd.New(etcdOf(b, s), etcd.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { d.Close() })
			c, client := steps.ClientOf(b, d), etcdOf(b, s)
			recipe := map[string]locker{}
			for i := range g {
				name := fmt.Sprint("ratio/", i)
				recipe[name] = ofRecipe(b, client, name)
			}
			once := func(lock locker) error {
				unlock, err := lock(b.Context())
				if err != nil {
					return err
				}
				return unlock()
			}
			var own, other, ratio []float64
			for range steps.Turns {
				o := steps.Pairs(b, g, func(name string) error { return once(ofDlock(c, name)) })
				t := steps.Pairs(b, g, func(name string) error { return once(recipe[name]) })
				own, other, ratio = append(own, o), append(other, t), append(ratio, o/t)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(steps.Median(own), "pairs/s")
			b.ReportMetric(steps.Median(other), "pairs/s-recipe")
			b.ReportMetric(steps.Median(ratio), "ratio")
		})
	}
}
