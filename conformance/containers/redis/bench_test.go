package redis

import (
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// A lock needs at least two scripts: a compare-and-set and a compare-and-delete.
var (
	bareSet    = goredis.NewScript(`if redis.call('GET', KEYS[1]) then return 0 end redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1`)
	bareDelete = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

func BenchmarkRedisPairs(b *testing.B) {
	s := service.Start(b, Redis)
	ctx := b.Context()
	plain := goredis.NewClient(&goredis.Options{Addr: s.Addr})
	defer plain.Close()
	client, err := dlock.Open(ctx, s.URL+"/0")
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	bare := func(name string) error {
		if err := bareSet.EvalSha(ctx, plain, []string{name}, "me", 30000).Err(); err != nil {
			return err
		}
		return bareDelete.EvalSha(ctx, plain, []string{name}, "me").Err()
	}
	lock := func(name string) error {
		l, err := client.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		return l.Unlock(ctx)
	}
	for _, script := range []*goredis.Script{bareSet, bareDelete} {
		if err := script.Load(ctx, plain).Err(); err != nil {
			b.Fatal(err)
		}
	}
	for _, g := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("goroutines=", g), func(b *testing.B) {
			var ratios, ours, theirs []float64
			for range steps.Turns {
				t, o := steps.Pairs(b, g, bare), steps.Pairs(b, g, lock)
				theirs, ours, ratios = append(theirs, t), append(ours, o), append(ratios, o/t)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(steps.Median(ours), "pairs/s")
			b.ReportMetric(steps.Median(theirs), "bare-pairs/s")
			b.ReportMetric(steps.Median(ratios), "ratio")
		})
	}
}

func BenchmarkRedisHandOff(b *testing.B) {
	s := service.Start(b, Redis)
	ctx := b.Context()
	plain := goredis.NewClient(&goredis.Options{Addr: s.Addr})
	defer plain.Close()
	if err := bareSet.Load(ctx, plain).Err(); err != nil {
		b.Fatal(err)
	}
	sub := plain.Subscribe(ctx, "ratio")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		b.Fatal(err)
	}
	var clients []*dlock.Client
	for range 8 {
		c, err := dlock.Open(ctx, s.URL+"/0")
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	// ring is the minimum of a hand-off: a message that arrives, and a call that confirms.
	ring := func() time.Duration {
		var sum []time.Duration
		for start := time.Now(); time.Since(start) < steps.TurnTime; {
			<-time.After(time.Millisecond)
			at := time.Now()
			done := make(chan error, 1)
			go func() { done <- plain.Publish(ctx, "ratio", "x").Err() }()
			if _, err := sub.ReceiveMessage(ctx); err != nil {
				b.Fatal(err)
			}
			if err := bareSet.EvalSha(ctx, plain, []string{"hand-off"}, "me", 30000).Err(); err != nil {
				b.Fatal(err)
			}
			sum = append(sum, time.Since(at))
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
		return steps.Median(sum)
	}
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprint("clients=", n), func(b *testing.B) {
			var few, many, rings []time.Duration
			var growth, ratio []float64
			for range steps.Turns {
				r := ring()
				f := steps.Median(steps.HandOffs(b, clients[:n], 2, time.Millisecond))
				m := steps.Median(steps.HandOffs(b, clients[:n], 128, time.Millisecond))
				few, many, rings = append(few, f), append(many, m), append(rings, r)
				growth, ratio = append(growth, float64(m)/float64(f)), append(ratio, float64(m)/float64(r))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(steps.Median(few).Microseconds()), "µs-2-waiters")
			b.ReportMetric(float64(steps.Median(many).Microseconds()), "µs-128-waiters")
			b.ReportMetric(float64(steps.Median(rings).Microseconds()), "µs-publish+evalsha")
			b.ReportMetric(steps.Median(growth), "128/2")
			b.ReportMetric(steps.Median(ratio), "128/(publish+evalsha)")
		})
	}
}
