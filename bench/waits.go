package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dlock-go/dlock/internal/gauge"
)

// waits: one client waits behind another, which releases the lock after a while. It measures a wait
// without a crowd, in which a poller learns of the release late.
var waits = scenario{
	name:    "waits",
	title:   "One client waits behind another, which holds the lock for 75 to 125 ms. Times are from the call of Unlock to the return of the Lock that waited",
	of:      "ms held",
	cases:   []int{100},
	length:  500 * time.Millisecond,
	waiting: true,
	lower:   true,
	metrics: []metric{{"p50", "p50 ms"}, {"most", "longest ms"}},
	enter: func(ctx context.Context, s *stand, c contender, n int) (entrant, error) {
		lockers, all, err := clientsOf(ctx, s.addr, c, 2, 2, "", fmt.Sprint("waits-", n))
		if err != nil {
			return nil, err
		}
		return couple{lockers[0], lockers[1], time.Duration(n) * time.Millisecond, all}, nil
	},
}

type couple struct {
	holder, waiter locker
	held           time.Duration
	closers
}

func (c couple) round(ctx context.Context, length time.Duration) (Round, error) {
	var took []time.Duration
	for start := time.Now(); time.Since(start) < length && ctx.Err() == nil; {
		d, err := handOff(ctx, c.holder, c.waiter, c.held*3/4+rand.N(c.held/2))
		if err != nil {
			return Round{}, err
		}
		took = append(took, d)
	}
	return Round{Values: map[string]float64{"p50": ms(gauge.Percentile(took, 50)), "most": ms(gauge.Percentile(took, 100))}}, nil
}

// handOff has the waiter come while the holder holds, and returns how long it took from the
// holder's Unlock to the return of the waiter's Lock.
func handOff(ctx context.Context, holder, waiter locker, held time.Duration) (time.Duration, error) {
	if err := holder.lock(ctx); err != nil {
		return 0, err
	}
	type result struct {
		at  time.Time
		err error
	}
	waited := make(chan result, 1)
	go func() {
		err := waiter.lock(ctx)
		waited <- result{time.Now(), err}
	}()
	time.Sleep(held)
	left := time.Now()
	if err := holder.unlock(); err != nil {
		return 0, err
	}
	r := <-waited
	if r.err != nil {
		return 0, r.err
	}
	return r.at.Sub(left), waiter.unlock()
}
