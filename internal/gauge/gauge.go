// Package gauge measures locks: how many are taken in a second, and how long each takes. It does
// not know whose locks they are.
package gauge

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Locker is what one goroutine locks one name with.
type Locker struct {
	Lock   func(ctx context.Context) error // waits until it has the lock
	Unlock func() error
}

// Pairs has each locker lock and unlock in a goroutine of its own, again and again for that long,
// and returns how long each pair took, and all together.
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

// Percentile returns the value below which so many percent are, of values that it sorts.
func Percentile[E cmp.Ordered](v []E, percent int) (zero E) {
	if len(v) == 0 {
		return zero
	}
	slices.Sort(v)
	return v[min(len(v)-1, len(v)*percent/100)]
}
