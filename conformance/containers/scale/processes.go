package main

import (
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// processes: many processes with a client each, which lock names of their own, and then one name in
// turn.
var processes = scenario{
	name:  "processes",
	title: "Processes with a client each. They lock names of their own, and then one name in turn.",
	of:    "processes",
	few:   2,
	many:  func(z size) int { return z.processes },
	apart: true,
	rows: []row{
		{key: "pairs", title: "Lock and Unlock of own names, a second, in total", bound: bound{share: 0.5}},
		{key: "turns", title: "turns of one name, a second, in total", bound: bound{share: 0.4}},
		{key: "p50", title: "median wait for one name, of processes × the time of a turn", bound: bound{most: 1.5}},
		{key: "p99", title: "p99 of the same", bound: bound{most: 4}},
		{key: "connections", title: "connections of a process", per: true, exact: true, bound: bound{most: 8}},
	},
	run: func(t service.T, s *site, n int) values {
		members := s.recruit(t, n, "members", ttl)
		v := values{}
		for _, d := range all(t, members, func(i int) order { return order{Do: "pairs", Name: nth(i), For: s.turns} }) {
			v["pairs"] += float64(d.N) / (s.turns / 2).Seconds()
		}
		var waits []time.Duration
		var turns float64
		sockets := 0
		for _, d := range all(t, members, func(int) order { return order{Do: "turns", Name: "in turn", For: s.turns} }) {
			turns += float64(d.N)
			waits = append(waits, d.Waits...)
			sockets += d.Sockets
		}
		v["turns"] = turns / (s.turns / 2).Seconds()
		ideal := float64(n) * 1000 / v["turns"]
		v["p50"], v["p99"] = quantile(waits, 0.5)/ideal, quantile(waits, 0.99)/ideal
		if s.kind != nil {
			v["connections"] = float64(sockets)
		}
		return v
	},
}
