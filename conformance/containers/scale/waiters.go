package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// waiters: many waiters of one name, in a few clients.
var waiters = scenario{
	name:  "waiters",
	title: "Waiters of one name, in four clients.",
	of:    "waiters",
	few:   8,
	many:  func(z size) int { return z.waiters },
	rows: []row{
		{key: "beside", title: "Lock and Unlock of another name, ms", bound: bound{times: 4, slack: 3}},
		{key: "try", title: "TryLock by another client, ms", bound: bound{times: 4, slack: 3}},
		{key: "cancelled", title: "from the end of a context to the return of Lock, ms", bound: bound{most: 100}},
		{key: "grant", title: "a hand-off, from Unlock to the next grant, ms", bound: bound{times: 4, slack: 3}},
		{key: "memory", title: "memory of a waiter, KiB", per: true, bound: bound{most: 32}},
		{key: "goroutines", title: "goroutines of a waiter, without the one that calls", per: true, exact: true, bound: bound{most: 1.1}},
		{key: "connections", title: "connections of the four clients", exact: true, bound: bound{most: 64}},
		{key: "trips", title: "round trips a second while nothing happens"},
	},
	run: func(t service.T, s *site, n int) values {
		prefix := fmt.Sprint("waiters-", n)
		c := newCrowd(t, s, 4, prefix)
		other := s.open(t, nil, prefix, ttl)
		t.Cleanup(func() { other.Close() })
		held, err := lock(other.Mutex("crowded"))
		if err != nil {
			t.Fatalf("lock: %v", err)
		}
		granted := make(chan *dlock.Lease, n)
		for i := range n {
			c.wait(c.clients[i%len(c.clients)].Mutex("crowded"), func(l *dlock.Lease) { granted <- l })
		}
		waiting(t, other, "crowded", n, c.over)
		v := values{}
		c.put(v, n)
		c.idle(v)
		v["beside"] = median(t, "a pair", pair(c.clients[0].Mutex("beside")))
		v["try"] = median(t, "TryLock", refused(other.Mutex("crowded"), held))
		var times []time.Duration
		for range 5 {
			ctx, cancel := context.WithCancel(context.Background())
			returned := make(chan error, 1)
			go func() {
				_, err := other.Mutex("crowded").Lock(ctx)
				returned <- err
			}()
			time.Sleep(s.pause / 10) // until it waits; if it does not yet, that is another moment
			start := time.Now()
			cancel()
			if err := <-returned; !errors.Is(err, context.Canceled) {
				t.Fatalf("a cancelled Lock returned %v", err)
			}
			times = append(times, time.Since(start))
		}
		v["cancelled"] = middle(times)
		times = nil
		for range min(samples, n) {
			start := time.Now()
			if err := held.Unlock(context.Background()); err != nil {
				t.Fatalf("unlock: %v", err)
			}
			select {
			case held = <-granted:
			case <-time.After(patience):
				t.Fatalf("no waiter is granted")
			}
			times = append(times, time.Since(start))
		}
		v["grant"] = middle(times)
		return v
	},
}
