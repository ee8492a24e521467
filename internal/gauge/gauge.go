// Package gauge measures the throughput and the latency of locks, of any implementation.
package gauge

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Locker locks one name for one goroutine.
type Locker struct {
	Lock   func(ctx context.Context) error // blocks until it has the lock
	Unlock func() error
}

// Pairs makes each locker lock and unlock repeatedly for that long, in a goroutine of its own. It
// returns the times of all pairs, and the time of the whole run.
func Pairs(ctx context.Context, lockers []Locker, length time.Duration) (took []time.Duration, elapsed time.Duration, err error) {
	each := make([][]time.Duration, len(lockers))
	errs := make([]error, len(lockers))
	var wg sync.WaitGroup
	start := time.Now()
	for i, l := range lockers {
		wg.Go(func() {
			for time.Since(start) < length && ctx.Err() == nil {
				began := time.Now()
				err := l.Lock(ctx)
				if err == nil {
					err = l.Unlock()
				}
				if err != nil {
					errs[i] = err
					return
				}
				each[i] = append(each[i], time.Since(began))
			}
		})
	}
	wg.Wait()
	return slices.Concat(each...), time.Since(start), errors.Join(errs...)
}

// Percentile returns that percentile of the values, and sorts them.
func Percentile[E cmp.Ordered](v []E, percent int) (zero E) {
	if len(v) == 0 {
		return zero
	}
	slices.Sort(v)
	return v[min(len(v)-1, len(v)*percent/100)]
}
