package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// names: many names with a holder and a waiter each, in one client.
var names = scenario{
	name:  "names",
	title: "Names with a holder and a waiter each, all of one client.",
	of:    "names",
	few:   10,
	many:  func(z size) int { return z.names },
	rows: []row{
		{key: "beside", title: "Lock and Unlock of another name, ms", bound: bound{times: 4, slack: 3}},
		{key: "grant", title: "from Unlock to the grant of the waiter, ms", bound: bound{times: 4, slack: 3}},
		{key: "memory", title: "memory of a name, KiB", per: true, bound: bound{most: 32}},
		{key: "goroutines", title: "goroutines of a name, without the one that calls", per: true, exact: true, bound: bound{most: 1.1}},
		{key: "connections", title: "connections of the client", exact: true, bound: bound{most: 16}},
		{key: "trips", title: "round trips a second while nothing happens"},
		{key: "lost", title: "leases that were lost", exact: true, bound: bound{most: -1}},
	},
	run: func(t service.T, s *site, n int) values {
		prefix := fmt.Sprint("names-", n)
		c := newCrowd(t, s, 1, prefix)
		one := c.clients[0]
		held := make([]*dlock.Lease, n)
		each(t, n, func(i int) (err error) {
			held[i], err = lock(one.Mutex(nth(i)))
			return err
		})
		granted := make(chan *dlock.Lease, n)
		for i := range n {
			c.wait(one.Mutex(nth(i)), func(l *dlock.Lease) { granted <- l })
		}
		each(t, n, func(i int) error {
			waiting(t, one, nth(i), 1, func() error { return errors.Join(c.over(), held[i].Err()) })
			return nil
		})
		v := values{}
		c.put(v, n)
		c.idle(v)
		v["beside"] = median(t, "a pair", pair(one.Mutex("beside")))
		var times []time.Duration
		for i := range min(samples, n) {
			start := time.Now()
			if err := held[i].Unlock(context.Background()); err != nil {
				t.Fatalf("unlock: %v", err)
			}
			l := <-granted
			times = append(times, time.Since(start))
			l.Unlock(context.Background())
		}
		v["grant"] = middle(times)
		v["lost"] = 0
		for _, l := range held[min(samples, n):] {
			if l.Err() != nil {
				v["lost"]++
			}
		}
		return v
	},
}
