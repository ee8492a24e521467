package memory

import (
	"fmt"
	"sync"
	"testing"
)

func BenchmarkUncontended(b *testing.B) {
	c := open(b, nil)
	defer c.Close()
	r := ask("name")
	b.ReportAllocs()
	for b.Loop() {
		c.Acquire(b.Context(), r)
		c.Release(b.Context(), r)
	}
}

// BenchmarkHandOff keeps a number of requests waiting: each step releases the holder, whose
// successor wakes up, and adds a new waiter. "driver" is the driver's part alone; "goroutines" has
// a goroutine for each waiter.
func BenchmarkHandOff(b *testing.B) {
	for _, waiters := range []int{10, 1000} {
		b.Run(fmt.Sprintf("driver/waiters=%d", waiters), func(b *testing.B) {
			c := open(b, nil)
			defer c.Close()
			line := make(chan func(), waiters+1)
			join := func() {
				r := ask("name")
				c.enqueue(r)
				line <- func() { c.Release(b.Context(), r) }
			}
			for range waiters {
				join()
			}
			b.ReportAllocs()
			for b.Loop() {
				join()
				(<-line)()
			}
		})
		b.Run(fmt.Sprintf("goroutines/waiters=%d", waiters), func(b *testing.B) {
			c := open(b, nil)
			defer c.Close()
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for i := range waiters + 1 {
				wg.Go(func() {
					for range (b.N + i) / (waiters + 1) {
						r := ask("name")
						if _, err := c.Acquire(b.Context(), r); err != nil {
							b.Error(err)
						}
						c.Release(b.Context(), r)
					}
				})
			}
			wg.Wait()
		})
	}
}
