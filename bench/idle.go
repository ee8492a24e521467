package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/dlock-go/dlock/conformance/netfault"
)

// leases: the cost of holding many locks while nothing happens to them.
var leases = scenario{
	name:    "leases",
	title:   "One client holds many locks with a TTL of 15 s, and nothing happens to them. Contenders that do not renew by themselves are left out. There are fewer locks where each needs a connection or a session",
	of:      "leases",
	cases:   []int{10_000},
	length:  ttl/3 + time.Second/2, // all are renewed once
	holding: true,
	counts:  true,
	metrics: []metric{{"n", "locks"}, {"fill", "s to take all"}, {"trips", "round trips/s"}, {"bytes", "bytes/s"}, {"connections", "connections"}, {"goroutines", "goroutines"}, {"memory", "bytes of memory each"}},
	enter:   enterLeases,
}

// waiters: the cost of waiting for locks that are not released.
var waiters = scenario{
	name:    "waiters",
	title:   "Goroutines of one client wait for locks that another client holds, ten for each lock, and nothing happens. The waiting goroutines themselves are not counted. There are fewer waiters where each needs a connection",
	of:      "waiters",
	cases:   []int{1000},
	length:  ttl/3 + time.Second/2,
	waiting: true,
	counts:  true,
	metrics: []metric{{"n", "waiters"}, {"trips", "round trips/s"}, {"bytes", "bytes/s"}, {"connections", "connections"}, {"goroutines", "goroutines"}, {"memory", "bytes of memory each"}},
	enter:   enterWaiters,
}

// perName is how many waiters a lock has.
const perName = 10

// idle is a client whose traffic is counted, with the cost of its locks to this process.
type idle struct {
	p      *netfault.Proxy // nil: there is no server
	values map[string]float64
	closers
}

// idleClient opens a client, calls get for n locks or waiters, and records what they cost.
func idleClient(ctx context.Context, s *stand, c contender, n int, get func(client) (closers, error)) (_ *idle, err error) {
	e := &idle{values: map[string]float64{"n": float64(n)}}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	addr := s.addr
	if s.server != nil {
		e.p = netfault.NewProxy()
		e.closers = append(e.closers, closing(e.p.Close))
		if addr, err = e.p.Addr(addr); err != nil {
			return nil, err
		}
	}
	goroutines, memory := process()
	start := time.Now()
	cl, err := c.open(ctx, addr)
	if err != nil {
		return nil, err
	}
	e.closers = append(e.closers, cl)
	all, err := get(cl)
	e.closers = append(e.closers, all)
	if err != nil {
		return nil, err
	}
	e.values["fill"] = time.Since(start).Seconds()
	g, m := process()
	// the proxy's goroutines and buffers of each connection are not the contender's
	open := 0
	if e.p != nil {
		open = e.p.Counts().Open
	}
	e.values["goroutines"] = float64(g - goroutines - 4*open)
	e.values["memory"] = float64(m-memory-int64(open)*64<<10) / float64(n)
	return e, nil
}

func enterLeases(ctx context.Context, s *stand, c contender, n int) (entrant, error) {
	n = c.atMost(n)
	return idleClient(ctx, s, c, n, func(cl client) (all closers, err error) {
		var lockers []locker
		for i := range n {
			l, err := cl.locker(ctx, fmt.Sprint("leases-", i))
			if err != nil {
				return all, err
			}
			lockers, all = append(lockers, l), append(all, l)
		}
		return all, lockAll(ctx, lockers)
	})
}

// process returns how many goroutines this process has, and its memory.
func process() (goroutines int, memory int64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), int64(m.HeapAlloc + m.StackInuse)
}

// lockAll takes all locks, many at a time.
func lockAll(ctx context.Context, lockers []locker) error {
	const abreast = 64
	next := make(chan locker)
	errs := make([]error, abreast)
	var wg sync.WaitGroup
	for i := range abreast {
		wg.Go(func() {
			for l := range next {
				if errs[i] == nil {
					errs[i] = l.lock(ctx)
				}
			}
		})
	}
	for _, l := range lockers {
		next <- l
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// round counts what passes while nothing happens.
func (e *idle) round(ctx context.Context, length time.Duration) (Round, error) {
	r := Round{Values: map[string]float64{}}
	for key, v := range e.values {
		r.Values[key] = v
	}
	if e.p == nil {
		return r, nil
	}
	before, start := e.p.Counts(), time.Now()
	err := pause(ctx, length)
	after, elapsed := e.p.Counts(), time.Since(start).Seconds()
	r.Values["trips"] = float64(after.RoundTrips-before.RoundTrips) / elapsed
	r.Values["bytes"] = float64(after.Bytes-before.Bytes) / elapsed
	r.Values["connections"] = float64(after.Open)
	return r, err
}

// queued is an idle client that waits, and a function that ends its waits.
type queued struct {
	*idle
	free func()
}

// close releases the locks that are waited for, so that waits end that no context ends.
func (q queued) close() {
	q.free()
	q.idle.close()
}

func enterWaiters(ctx context.Context, s *stand, c contender, n int) (entrant, error) {
	n = c.atMost(n)
	holders, all, err := clientsOf(ctx, s.addr, c, 1, n/perName, "waiters", "")
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	free := func() {
		cancel()
		for _, h := range holders {
			h.unlock()
		}
		wg.Wait()
		all.close()
	}
	if err := lockAll(ctx, holders); err != nil {
		all.close()
		cancel()
		return nil, err
	}
	e, err := idleClient(ctx, s, c, n, func(cl client) (own closers, err error) {
		for i := range n {
			l, err := cl.locker(ctx, fmt.Sprint("waiters-", i%len(holders)))
			if err != nil {
				return own, err
			}
			own = append(own, l)
			wg.Go(func() {
				if l.lock(waiting) == nil {
					l.unlock()
				}
			})
		}
		return own, pause(ctx, time.Second) // until all wait
	})
	if err != nil {
		free()
		return nil, err
	}
	e.values["goroutines"] -= float64(n)
	return queued{e, free}, nil
}
