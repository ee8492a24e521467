package dlock

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

func newBench(tb testing.TB) *Client {
	c, err := New(newMemory(nil), Logger(nil))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

func BenchmarkLockUnlock(b *testing.B) {
	c := newBench(b)
	m := c.Mutex("a")
	b.ReportAllocs()
	for b.Loop() {
		l, _ := m.Lock(b.Context())
		l.Unlock(b.Context())
	}
}

func BenchmarkLockUnlockParallel(b *testing.B) {
	c := newBench(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		m := c.Mutex(fmt.Sprint(time.Now().UnixNano()))
		for pb.Next() {
			l, _ := m.Lock(b.Context())
			l.Unlock(b.Context())
		}
	})
}

func BenchmarkReentry(b *testing.B) {
	c := newBench(b)
	m := c.Mutex("a")
	outer, _ := m.Lock(b.Context())
	ctx := outer.Context(b.Context())
	b.ReportAllocs()
	for b.Loop() {
		l, _ := m.Lock(ctx)
		l.Unlock(ctx)
	}
}

// BenchmarkHandOff measures a hand-off between goroutines that all want one name: the same for any
// number of waiters.
func BenchmarkHandOff(b *testing.B) {
	for _, waiters := range []int{10, 1000} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) { handOffs(b, waiters, b.N) })
	}
}

func handOffs(tb testing.TB, waiters, n int) time.Duration {
	c := newBench(tb)
	m := c.Mutex("a")
	first := mustLock(tb, m, tb.Context())
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			for range (n + i) / waiters {
				l, err := m.Lock(tb.Context())
				if err != nil {
					tb.Error(err)
					return
				}
				l.Unlock(tb.Context())
			}
		})
	}
	for n >= waiters { // until all wait
		q, err := c.Inspect(tb.Context(), "a")
		if err != nil {
			tb.Fatal(err)
		}
		if len(q.Waiters) == waiters {
			break
		}
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	mustUnlock(tb, first)
	wg.Wait()
	return time.Since(start)
}

func TestLockAllocates(t *testing.T) {
	const most = 10 // 9 without the race detector
	c, _ := newHooked(t)
	m := c.Mutex("a")
	if n := testing.AllocsPerRun(200, func() { mustUnlock(t, mustLock(t, m, t.Context())) }); n > most {
		t.Errorf("Lock and Unlock make %v allocations; want %d at most", n, most)
	}
	l := mustLock(t, m, t.Context())
	if n := testing.AllocsPerRun(200, func() { l.Err() }); n > 0 {
		t.Errorf("Err makes %v allocations; want none", n)
	}
}
