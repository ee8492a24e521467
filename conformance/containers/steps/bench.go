package steps

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// Benchmarks measure dlock against the cost of its messages alone, in turns in one run: machines
// are shared, and only the ratio means anything. They report the median of the turns.

const (
	Turns    = 15                     // of either; the median counts
	TurnTime = 300 * time.Millisecond // of each
)

// Pairs returns how often the goroutines run f together in a second. Each has a name of its own.
func Pairs(b *testing.B, goroutines int, f func(name string) error) float64 {
	var n atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for i := range goroutines {
		name := fmt.Sprint("ratio/", i)
		wg.Go(func() {
			for time.Since(start) < TurnTime {
				if err := f(name); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(start).Seconds()
}

// Median returns the value in the middle.
func Median[E float64 | time.Duration](v []E) E {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// HandOffs has the waiters take turns on one name for a while, spread over the clients, and returns
// the times from the call of Unlock to the return of the next Lock. A goroutine that released the
// lock acquires it again only after another one has had it.
func HandOffs(b *testing.B, clients []*dlock.Client, waiters int, hold time.Duration) []time.Duration {
	ctx, stop := context.WithTimeout(b.Context(), 2*TurnTime)
	defer stop()
	var mu sync.Mutex
	var took []time.Duration
	var left time.Time
	turn := make(chan struct{}) // closed by the next holder
	var wg sync.WaitGroup
	for i := range waiters {
		m := clients[i%len(clients)].Mutex("hand-off")
		wg.Go(func() {
			for ctx.Err() == nil {
				l, err := m.Lock(ctx)
				if err != nil {
					return
				}
				now := time.Now()
				mu.Lock()
				if !left.IsZero() {
					took = append(took, now.Sub(left))
				}
				close(turn)
				turn = make(chan struct{})
				next := turn
				mu.Unlock()
				<-time.After(hold)
				mu.Lock()
				left = time.Now()
				mu.Unlock()
				if err := l.Unlock(context.WithoutCancel(ctx)); err != nil {
					b.Error(err)
				}
				select {
				case <-next:
				case <-ctx.Done():
				}
			}
		})
	}
	wg.Wait()
	return took
}
