package memory

import (
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestHolderExpiresToTheNanosecond(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		must(t, a, r)
		time.Sleep(ttl - 1)
		_, err := b.Acquire(t.Context(), try("lock"))
		wants(t, err, driver.ErrHeld)
		time.Sleep(time.Nanosecond)
		must(t, b, ask("lock"))
		wants(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, driver.ErrLost)
		wants(t, a.Release(t.Context(), r), driver.ErrLost)
		_, err = a.Acquire(t.Context(), r) // an expired request is not resumed
		wants(t, err, driver.ErrLost)
	})
}

func TestEmptyQueueLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h, r := ask("lock"), ask("lock")
		must(t, a, h)
		w := start(t.Context(), b, r)
		q := a.space.queues["lock"]
		wants(t, a.Release(t.Context(), h), nil)
		wants(t, returns(t, w).err, nil)
		wants(t, b.Release(t.Context(), r), nil)
		empty(t, a.space)
		if q.timer.Stop() {
			t.Error("the timer still runs")
		}
	})
	x, y, z := &driver.Entry{}, &driver.Entry{}, &driver.Entry{}
	es := []*driver.Entry{x, y, z}
	if left := without(es, 1); !slices.Equal(left, []*driver.Entry{x, z}) || es[0] != nil {
		t.Errorf("%v without the second is %v, and keeps %v", []*driver.Entry{x, y, z}, left, es[0])
	}
}
