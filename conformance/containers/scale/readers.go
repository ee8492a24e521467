package main

import (
	"context"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// readers: many readers of one name, in a few clients.
var readers = scenario{
	name:  "readers",
	title: "Readers that hold one name, in four clients.",
	of:    "readers",
	few:   8,
	many:  func(z size) int { return z.readers },
	rows: []row{
		{key: "beside", title: "Lock and Unlock by one more reader, ms", bound: bound{times: 4, slack: 3}},
		{key: "try", title: "TryLock by a writer, ms", bound: bound{times: 4, slack: 3}},
		{key: "renew", title: "Renew of one of them, ms", bound: bound{times: 4, slack: 3}},
		{key: "memory", title: "memory of a reader, KiB", per: true, bound: bound{most: 8}},
		{key: "goroutines", title: "goroutines of a reader", per: true, exact: true, bound: bound{most: 0.1}},
		{key: "connections", title: "connections of the four clients", exact: true, bound: bound{most: 64}},
		{key: "trips", title: "round trips a second, with their renewals"},
		{key: "lost", title: "leases that were lost", exact: true, bound: bound{most: -1}},
	},
	run: func(t service.T, s *site, n int) values {
		prefix := fmt.Sprint("readers-", n)
		c := newCrowd(t, s, 4, prefix)
		other := s.open(t, nil, prefix, ttl)
		t.Cleanup(func() { other.Close() })
		held := make([]*dlock.Lease, n)
		each(t, n, func(i int) (err error) {
			held[i], err = lock(c.clients[i%len(c.clients)].RWMutex("read").Read())
			return err
		})
		v := values{}
		c.put(v, 0)
		c.idle(v)
		v["beside"] = median(t, "a pair of a reader", pair(other.RWMutex("read").Read()))
		v["try"] = median(t, "TryLock by a writer", refused(other.RWMutex("read").Write(), held...))
		v["renew"] = median(t, "Renew", func() error { return held[n/2].Renew(context.Background()) })
		v["lost"] = 0
		for _, l := range held {
			if l.Err() != nil {
				v["lost"]++
			}
		}
		return v
	},
}
