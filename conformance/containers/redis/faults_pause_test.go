package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/redis"
)

// openRedis opens a client of the server by URL.
func openRedis(t *testing.T, s *service.Server, params string) *dlock.Client {
	t.Helper()
	c, err := dlock.Open(t.Context(), s.URL+"/0?"+params, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// redisLock takes a lock, for which the test has a minute.
func redisLock(t *testing.T, m dlock.Mutex) *dlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := m.Lock(ctx)
	if err != nil {
		t.Fatalf("Lock of %q: %v", m.Name(), err)
	}
	return l
}

func redisUnlock(t *testing.T, l *dlock.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatalf("Unlock of %q: %v", l.Name(), err)
	}
}

// redisWaiting waits until that many requests wait for the name, as the client sees it.
func redisWaiting(t *testing.T, c *dlock.Client, name string, n int) (q dlock.Queue) {
	t.Helper()
	await.That(t, fmt.Sprintf("%d wait for %q", n, name), func() bool {
		var err error
		q, err = c.Inspect(t.Context(), name)
		return err == nil && len(q.Waiters) == n
	})
	return q
}

// pipelinesUnderWay returns how many pipelines this process has under way, of all its clients.
func pipelinesUnderWay() int {
	for size := 1 << 20; ; size *= 2 {
		stacks := make([]byte, size)
		if n := runtime.Stack(stacks, true); n < size {
			return bytes.Count(stacks[:n], []byte("(*pipelines).exec("))
		}
	}
}

// TestRedisUnsentCallsAreDropped: a call that was abandoned before it was sent is not sent at all,
// and neither is the clean-up after it.
func TestRedisUnsentCallsAreDropped(t *testing.T) {
	const given = 1000
	s := service.StartOwn(t, Redis)
	p := netfault.NewProxy()
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true, DialTimeout: time.Minute, ReadTimeout: time.Minute}), p, redis.Options{})
	held := steps.Request("held")
	if _, err := steps.Acquire(t.Context(), b, held); err != nil {
		t.Fatal(err)
	}
	seen := CLIOf(t, s)
	heal := p.Isolate()
	defer heal()
	var stuck, gone sync.WaitGroup
	await.That(t, "no other client has a pipeline under way", func() bool { return pipelinesUnderWay() == 0 })
	for i := 1; i <= 2; i++ { // one after the other: together they would share a pipeline
		stuck.Go(func() {
			if _, err := steps.Acquire(t.Context(), b, steps.Request(fmt.Sprint("stuck ", i))); err != nil {
				t.Errorf("a call that was held for a moment: %v", err)
			}
		})
		await.That(t, fmt.Sprint("pipelines under way: ", i), func() bool { return pipelinesUnderWay() == i })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	ran := seen.WorkOf(func() {
		for i := range given {
			gone.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = steps.Acquire(ctx, b, steps.Request(fmt.Sprint("gone ", i)))
				} else {
					err = b.Release(ctx, held)
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("off the line: %v", err)
				}
			})
		}
		await.All(t, &gone)
		heal()
		await.All(t, &stuck)
		if err := b.Release(t.Context(), held); err != nil {
			t.Errorf("Release: %v", err)
		}
	}).Calls
	if ran > given/10 {
		t.Errorf("the server ran %d calls, of %d that were abandoned", ran, given)
	}
}

// TestRedisServesSoonAfterAPause: requests that were abandoned while the server was stopped do not
// delay requests that arrive when it continues.
func TestRedisServesSoonAfterAPause(t *testing.T) {
	// an abandoned request that is granted would cost a window
	const pause, window = 2500 * time.Millisecond, 10 * time.Second
	params := fmt.Sprintf("ttl=30s&read_timeout=1s&grant_window=%s", window)
	s := service.StartOwn(t, Redis)
	fresh := openRedis(t, s, params)
	redisUnlock(t, redisLock(t, fresh.Mutex("warm")))
	for _, mode := range []string{"unlock", "locks", "waits", "all"} {
		t.Run(mode, func(t *testing.T) {
			c, name := openRedis(t, s, params), "pause "+mode
			l := redisLock(t, c.Mutex(name))
			var leave sync.WaitGroup
			defer await.All(t, &leave)
			giveUp := func(ctx context.Context) {
				if _, err := c.Mutex(name).Lock(ctx); err == nil {
					t.Error("Lock of what is held, of a server that stands, succeeded")
				}
			}
			waits, leaveAll := context.WithCancel(t.Context())
			defer leaveAll()
			if mode == "waits" || mode == "all" {
				for range 20 {
					leave.Go(func() { giveUp(waits) })
				}
				redisWaiting(t, fresh, name, 20)
			}
			s.Pause(t)
			start := time.Now()
			if mode == "locks" || mode == "all" {
				for range 50 {
					leave.Go(func() {
						for time.Since(start) < pause-time.Second {
							ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
							giveUp(ctx)
							cancel()
						}
					})
				}
			}
			<-time.After(time.Until(start.Add(pause / 2)))
			leave.Go(func() { // its own time is over, but it is released
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if err := l.Unlock(ctx); err == nil {
					t.Error("Unlock of a server that stands succeeded")
				}
			})
			leaveAll()
			await.All(t, &leave)
			<-time.After(time.Until(start.Add(pause)))
			s.Continue(t)
			on := time.Now()
			for range 2 {
				redisUnlock(t, redisLock(t, fresh.Mutex(name)))
			}
			took := time.Since(on)
			t.Logf("two newcomers were served %s after the pause", took)
			if took > window*4/5 {
				t.Errorf("two newcomers were served only %s after the pause", took)
			}
		})
	}
}
