package main

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/internal/gauge"
)

const (
	manyClients = 8 // of which the waiters are
	hold        = time.Millisecond
)

// handOffs: waiters of several clients take turns on one name. After its release a waiter asks
// again only once another waiter has had the lock. So no contender looks fast by taking its own
// lock again at once.
var handOffs = scenario{
	name:    "handoffs",
	title:   "One name, waiters of 8 clients, held for 1 ms; after a release, a waiter asks again once another waiter has had the lock. Times are from the call of Unlock to the return of the next Lock",
	of:      "waiters",
	cases:   []int{2, 16, 128},
	length:  450 * time.Millisecond,
	waiting: true,
	metrics: []metric{{"rate", "hand-offs/s"}, {"p50", "p50 ms"}, {"p99", "p99 ms"}},
	enter: func(ctx context.Context, s *stand, c contender, n int) (entrant, error) {
		lockers, all, err := clientsOf(ctx, s.addr, c, min(n, manyClients), n, "", "hand-offs")
		if err != nil {
			return nil, err
		}
		return relay{lockers, all}, nil
	},
}

type relay struct {
	lockers []locker
	closers
}

func (r relay) round(ctx context.Context, length time.Duration) (Round, error) {
	m, err := gauge.HandOffs(ctx, measured(r.lockers), length, hold)
	return Round{Turns: m.Turns, Values: map[string]float64{
		"rate": float64(len(m.Took)) / m.Elapsed.Seconds(),
		"p50":  ms(gauge.Percentile(m.Took, 50)),
		"p99":  ms(gauge.Percentile(m.Took, 99)),
	}}, err
}
