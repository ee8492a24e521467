package steps

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// Workers take turns on a few names for a while, and count faults.
type Workers struct {
	wg    sync.WaitGroup
	stop  context.CancelFunc
	turns atomic.Int64
	Wrong atomic.Int64                  // how often two trusted in their holds of one name
	inBy  []atomic.Pointer[dlock.Lease] // the last that was granted, unless it was released
}

// StartWorkers runs several clients on the URL. Two that trust in their holds of a name at once are
// an error of the test, unless free is set: a failover of Redis may do that.
func StartWorkers(t *testing.T, url string, free bool) *Workers {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &Workers{stop: stop, inBy: make([]atomic.Pointer[dlock.Lease], 4)}
	for range 3 {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil), dlock.TTL(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for i := range 8 {
			name := i % len(w.inBy)
			w.wg.Go(func() {
				for ctx.Err() == nil {
					l, err := c.Mutex(fmt.Sprint("work/", name)).Lock(ctx)
					if err != nil {
						continue // because of the fault that the test makes
					}
					if before := w.inBy[name].Swap(l); before != nil && before.Err() == nil && l.Err() == nil {
						w.Wrong.Add(1)
					}
					<-time.After(time.Millisecond)
					w.inBy[name].CompareAndSwap(l, nil)
					if l.Unlock(context.Background()) == nil {
						w.turns.Add(1)
					}
				}
			})
		}
	}
	t.Cleanup(func() {
		stop()
		await.All(t, &w.wg)
		if n := w.Wrong.Load(); n > 0 && !free {
			t.Errorf("%d times two held one name", n)
		}
	})
	return w
}

// More waits for n more turns.
func (w *Workers) More(t *testing.T, n int64) {
	t.Helper()
	w.MoreWithin(t, await.Patience, n)
}

// MoreWithin is More for servers that may take that long to continue: while they elect one of them,
// and elect again.
func (w *Workers) MoreWithin(t *testing.T, d time.Duration, n int64) {
	t.Helper()
	from := w.turns.Load()
	await.Within(t, d, "work continues", func() bool { return w.turns.Load() >= from+n })
}
