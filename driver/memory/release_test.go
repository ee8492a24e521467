package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestUncertainReleaseLeavesATombstone(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r, never := ask("lock"), ask("lock")
		r.Uncertain, never.Uncertain = true, true
		must(t, a, r)
		wants(t, a.Release(t.Context(), r), nil)
		wants(t, a.Release(t.Context(), never), driver.ErrLost) // it overtook its Acquire
		time.Sleep(ttl - 1)
		for _, late := range []driver.Request{r, never} {
			_, err := a.Acquire(t.Context(), late)
			wants(t, err, driver.ErrLost)
		}
		empty(t, a.space)
		must(t, b, ask("lock"))
	})
}

func TestTombstonesArePurged(t *testing.T) {
	inBubble(t, func(t *testing.T, a, _ *Backend) {
		for i := range 10_000 {
			r := ask("lock")
			r.Uncertain = true
			a.Release(t.Context(), r)
			time.Sleep(ttl / 100)
			if n := len(a.space.tombstones.until); n > 2*102+64 {
				t.Fatalf("%d tombstones after %d releases, 100 of them valid", n, i)
			}
		}
		if n := len(a.space.tombstones.until); n < 100 {
			t.Fatalf("%d tombstones of 100 valid ones", n)
		}
	})
}

// TestTombstoneOfALateRelease: a release with a shorter TTL does not end the tombstone of an
// earlier one.
func TestTombstoneOfALateRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, a, _ *Backend) {
		r := ask("lock")
		r.Uncertain = true
		a.Release(t.Context(), r)
		short := r
		short.TTL = minTTL
		a.Release(t.Context(), short)
		time.Sleep(r.TTL / 2)
		if _, err := a.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("a late copy of the Acquire: %v, want ErrLost", err)
		}
	})
}
