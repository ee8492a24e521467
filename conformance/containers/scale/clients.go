package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// clients: many clients of one service, each with a hold of a name of its own.
var clients = scenario{
	name:  "clients",
	title: "Clients of one process, each with a hold of its own.",
	of:    "clients",
	few:   1,
	many:  func(z size) int { return z.clients },
	rows: []row{
		{key: "pair", title: "Lock and Unlock by one of them, ms", bound: bound{times: 4, slack: 3}},
		{key: "memory", title: "memory of a client, KiB", per: true, bound: bound{most: 256}},
		{key: "goroutines", title: "goroutines of a client", per: true, exact: true, bound: bound{most: 12}},
		{key: "connections", title: "connections of a client", per: true, exact: true, bound: bound{most: 2.1}},
		{key: "entries", title: "entries at the server for a hold", per: true, exact: true, bound: bound{most: 2.1}},
		{key: "lost", title: "leases that were lost", exact: true, bound: bound{most: -1}},
	},
	run: func(t service.T, s *site, n int) values {
		prefix := fmt.Sprint("clients-", n)
		before, empty := used(), s.at(t, prefix)
		var mu sync.Mutex
		var all []*dlock.Client
		var leases []*dlock.Lease
		t.Cleanup(func() {
			each(t, len(all), func(i int) error { all[i].Close(); return nil })
		})
		each(t, n, func(i int) error {
			c := s.open(t, nil, prefix, ttl)
			mu.Lock()
			all = append(all, c)
			mu.Unlock()
			l, err := lock(c.Mutex(nth(i)))
			mu.Lock()
			defer mu.Unlock()
			leases = append(leases, l)
			return err
		})
		time.Sleep(s.pause) // all are renewed, and what is only used at first is closed
		v := values{"lost": 0, "pair": median(t, "a pair", pair(all[0].Mutex("beside")))}
		now := used()
		v["memory"] = float64(now.memory-before.memory) / 1024
		v["goroutines"] = float64(now.goroutines - before.goroutines)
		if s.kind != nil {
			v["connections"] = float64(now.sockets - before.sockets)
		}
		if s.stored != nil {
			v["entries"] = float64(s.at(t, prefix).entries - empty.entries)
		}
		for _, l := range leases {
			if l.Err() != nil {
				v["lost"]++
			}
		}
		each(t, len(leases), func(i int) error {
			leases[i].Unlock(context.Background())
			return nil
		})
		return v
	},
}
