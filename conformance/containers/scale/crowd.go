package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// crowd is some clients of this process whose traffic is counted, and their waiters.
type crowd struct {
	t       service.T
	s       *site
	p       *netfault.Proxy
	before  uses
	clients []*dlock.Client
	ctx     context.Context // of the waits
	leave   context.CancelFunc
	waits   sync.WaitGroup
	ended   atomic.Pointer[error] // of a wait that ended by itself
}

// newCrowd opens clients. They are closed at the end of the stage.
func newCrowd(t service.T, s *site, clients int, prefix string) *crowd {
	t.Helper()
	c := &crowd{t: t, s: s, p: netfault.NewProxy(), before: used()}
	c.ctx, c.leave = context.WithCancel(context.Background())
	t.Cleanup(func() {
		c.leave()
		for _, one := range c.clients {
			one.Close()
		}
		c.waits.Wait()
		c.p.Close()
	})
	for range clients {
		c.clients = append(c.clients, s.open(t, c.p, prefix, ttl))
	}
	return c
}

// wait lets a goroutine wait for a lock; granted is called with the lease.
func (c *crowd) wait(m dlock.Mutex, granted func(*dlock.Lease)) {
	c.waits.Go(func() {
		l, err := m.Lock(c.ctx)
		switch {
		case err == nil:
			granted(l)
		case c.ctx.Err() == nil:
			c.ended.CompareAndSwap(nil, &err)
		}
	})
}

// over is the error of a wait that ended by itself.
func (c *crowd) over() error {
	if err := c.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// waiting blocks until n requests wait for the name, as a client sees it. It fails if one ended.
func waiting(t service.T, viewer *dlock.Client, name string, n int, ended func() error) {
	t.Helper()
	if !viewer.Capabilities().Queue {
		time.Sleep(time.Second) // there is nothing to see
		return
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		q, err := viewer.Inspect(ctx, name)
		cancel()
		if err == nil && len(q.Waiters) >= n {
			return
		}
		if err := ended(); err != nil {
			t.Fatalf("a wait ended: %v", err)
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d requests wait for %q after %s: %v", len(q.Waiters), n, name, patience, err)
		}
	}
}

// put records what the crowd uses. Its waiting goroutines do not count, nor does the proxy.
func (c *crowd) put(v values, waiters int) {
	now, open := used(), c.p.Counts().Open
	v["goroutines"] = float64(now.goroutines - c.before.goroutines - 4*open - waiters)
	v["memory"] = float64(now.memory-c.before.memory-int64(open)*64<<10) / 1024
	if c.s.kind != nil {
		v["connections"] = float64(open)
	}
}

// idle counts the round trips of some seconds in which nothing happens.
func (c *crowd) idle(v values) {
	if c.s.kind == nil {
		return
	}
	before, start := c.p.Counts().RoundTrips, time.Now()
	time.Sleep(c.s.pause)
	v["trips"] = float64(c.p.Counts().RoundTrips-before) / time.Since(start).Seconds()
}
