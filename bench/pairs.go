package main

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/internal/gauge"
)

// pairs: goroutines of one client lock and unlock, each a name of its own.
var pairs = scenario{
	name:    "pairs",
	title:   "Lock and Unlock of uncontended names, by goroutines of one client",
	of:      "goroutines",
	cases:   []int{1, 16, 256},
	length:  300 * time.Millisecond,
	metrics: []metric{{"rate", "pairs/s"}, {"p50", "p50 ms"}, {"p99", "p99 ms"}},
	enter: func(ctx context.Context, s *stand, c contender, n int) (entrant, error) {
		lockers, all, err := clientsOf(ctx, s.addr, c, 1, n, fmt.Sprint("pairs-", n), "")
		if err != nil {
			return nil, err
		}
		return pairing{lockers, all}, nil
	},
}

type pairing struct {
	lockers []locker
	closers
}

func (p pairing) round(ctx context.Context, length time.Duration) (Round, error) {
	all, elapsed, err := gauge.Pairs(ctx, measured(p.lockers), length)
	return Round{Values: map[string]float64{
		"rate": float64(len(all)) / elapsed.Seconds(),
		"p50":  ms(gauge.Percentile(all, 50)),
		"p99":  ms(gauge.Percentile(all, 99)),
	}}, err
}

// measured are lockers as package gauge takes them.
func measured(lockers []locker) []gauge.Locker {
	all := make([]gauge.Locker, len(lockers))
	for i, l := range lockers {
		all[i] = gauge.Locker{Lock: l.lock, Unlock: l.unlock}
	}
	return all
}
