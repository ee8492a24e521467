//go:build linux || darwin

package file

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func BenchmarkLockUnlock(b *testing.B) {
	x := openTest(b, b.TempDir())
	b.ReportAllocs()
	for b.Loop() {
		r := request("a", long)
		acquire(b, x, r)
		release(b, x, r)
	}
}

// The goroutines, half of them in each of two clients, lock and unlock one name in turn. An
// operation is one arrival in a queue of that length, and one hand-off.
func BenchmarkHandOff(b *testing.B) {
	for _, n := range []int{2, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			clients := []*Backend{openTest(b, dir), openTest(b, dir)}
			var left atomic.Int64
			left.Store(int64(b.N))
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						r := request("a", long)
						acquire(b, clients[i%2], r)
						release(b, clients[i%2], r)
					}
				})
			}
			all.Wait()
		})
	}
}

func BenchmarkRenew10000(b *testing.B) {
	x := openTest(b, b.TempDir())
	rs := make([]driver.Request, 10000)
	for i := range rs {
		rs[i] = request(fmt.Sprint("n", i), long)
		acquire(b, x, rs[i])
	}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		for _, r := range x.Renew(b.Context(), rs) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
}
