package gauge

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fair is a lock that n lockers share, in the order of arrival, and that takes 3 ms to pass on.
func fair(n int) []Locker {
	free := make(chan struct{}, 1)
	free <- struct{}{}
	l := Locker{
		Lock: func(ctx context.Context) error {
			select {
			case <-free:
				time.Sleep(3 * time.Millisecond)
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Unlock: func() error { free <- struct{}{}; return nil },
	}
	ls := make([]Locker, n)
	for i := range ls {
		ls[i] = l
	}
	return ls
}

func TestPairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took, elapsed, err := Pairs(t.Context(), append(fair(1), fair(1)...), 300*time.Millisecond)
		if err != nil || len(took) != 200 || elapsed != 300*time.Millisecond || Percentile(took, 50) != 3*time.Millisecond {
			t.Errorf("%d pairs in %s, of %s: %v", len(took), elapsed, Percentile(took, 50), err)
		}
		bad := errors.New("refused")
		if _, _, err := Pairs(t.Context(), []Locker{{Lock: func(context.Context) error { return bad }}}, time.Hour); !errors.Is(err, bad) {
			t.Error(err)
		}
	})
}

// TestHandOffsCountsFromUnlockToTheNextLock: the time for which the lock is held does not count,
// and all lockers have turns.
func TestHandOffsCountsFromUnlockToTheNextLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := HandOffs(t.Context(), fair(4), time.Second, time.Millisecond)
		if err != nil || Percentile(r.Took, 50) != 3*time.Millisecond || Percentile(r.Took, 99) != 3*time.Millisecond {
			t.Errorf("%s, %s: %v", Percentile(r.Took, 50), Percentile(r.Took, 99), err)
		}
		if len(r.Took) < 249 || len(r.Took) > 250 || r.Elapsed != time.Second {
			t.Errorf("%d hand-offs in %s", len(r.Took), r.Elapsed)
		}
		for i, n := range r.Turns {
			if n < 61 || n > 64 {
				t.Errorf("locker %d had %d turns of %d", i, n, len(r.Took))
			}
		}
	})
}

func TestPercentile(t *testing.T) {
	if Percentile([]int{}, 50) != 0 || Percentile([]int{3, 1, 2}, 50) != 2 || Percentile([]int{2, 1}, 99) != 2 {
		t.Error("wrong")
	}
}

// TestHandOffsAreStrict: a lock that its holder could take again at once does not look fast.
func TestHandOffsAreStrict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Bool
		greedy := Locker{
			Lock: func(ctx context.Context) error {
				for !held.CompareAndSwap(false, true) {
					if pause(ctx, 3*time.Millisecond); ctx.Err() != nil {
						return ctx.Err()
					}
				}
				return nil
			},
			Unlock: func() error { held.Store(false); return nil },
		}
		r, err := HandOffs(t.Context(), []Locker{greedy, greedy}, time.Second, time.Millisecond)
		if all := r.Turns[0] + r.Turns[1]; err != nil || all < 100 || min(r.Turns[0], r.Turns[1]) < all/2-1 {
			t.Errorf("turns %v, %v", r.Turns, err)
		}
	})
}
