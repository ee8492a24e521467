package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// scenario is a number of something, of which there are few and then many.
type scenario struct {
	name  string
	title string
	of    string // what is counted
	few   int
	many  func(size) int
	rows  []row
	run   func(t service.T, s *site, n int) values
	apart bool // it needs other processes, or what a server keeps
}

// values are what was measured, by the keys of rows.
type values map[string]float64

// scenarios are all scenarios. The week comes first, on a server that is new.
var scenarios = []scenario{week, clients, processes, names, waiters, readers}

// size is how many there are of everything.
type size struct {
	crashes, clients, processes, names, waiters, readers int
	pause                                                time.Duration // in which nothing happens
	turns                                                time.Duration // of processes
}

// full is what make scale measures.
var full = size{10_080, 1000, 64, 10_000, 5000, 5000, 3200 * time.Millisecond, 2 * time.Second}

// times returns a share of the size, of which there are at least some.
func (z size) times(share float64) size {
	for n, least := range map[*int]int{&z.crashes: 120, &z.clients: 8, &z.processes: 3, &z.names: 50, &z.waiters: 50, &z.readers: 50} {
		*n = max(int(share*float64(*n)), least)
	}
	return z
}

// report is what was measured on a backend.
type report struct {
	backend
	when     time.Time
	versions []string
	results  []result
}

// result is what was measured in a scenario.
type result struct {
	scenario
	most      int // how many there were
	few, many values
	trouble   error // why something is missing
	took      time.Duration
}

// measure measures a backend.
func measure(ctx context.Context, b backend, chosen []scenario, z size) (r report) {
	r.backend, r.when = b, time.Now().UTC()
	var t service.Stage
	defer t.End()
	var s *site
	if err := t.Try(func() { s = b.start(&t, z) }); err != nil {
		r.results = append(r.results, result{scenario: scenario{name: "start"}, trouble: err})
		return r
	}
	r.versions = s.versions
	for _, sc := range chosen {
		if ctx.Err() != nil || b.alone && sc.apart {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", b.name, sc.name)
		start := time.Now()
		x := result{scenario: sc, most: s.atMost(sc)}
		if x.trouble = s.once(sc, sc.few, &x.few); x.trouble == nil {
			x.trouble = s.once(sc, x.most, &x.many)
		}
		x.took = time.Since(start).Round(time.Second / 10)
		r.results = append(r.results, x)
	}
	return r
}

// once runs a scenario with n of what it counts.
func (s *site) once(sc scenario, n int, v *values) error {
	var t service.Stage
	defer t.End()
	return t.Try(func() { *v = sc.run(&t, s, n) })
}

// atMost returns how many there are of what a scenario counts.
func (s *site) atMost(sc scenario) int {
	n := sc.many(s.size)
	if most := s.bounds[sc.name].count; most > 0 {
		n = min(n, most)
	}
	return n
}
