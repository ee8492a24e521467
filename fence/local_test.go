package fence

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
)

func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Local
		admit := func(resource string, m Mark) func() {
			t.Helper()
			done, err := l.Admit(t.Context(), resource, m)
			if err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
			return done
		}
		refused := func(m Mark) {
			t.Helper()
			if done, err := l.Admit(t.Context(), "a", m); !errors.Is(err, ErrStale) || done != nil {
				t.Fatalf("%+v: %v, want ErrStale", m, err)
			}
		}
		done := admit("a", Mark{5, "x"})
		admit("b", Mark{1, "y"})() // another resource
		done()
		done() // again
		admit("a", Mark{5, "x"})()
		refused(Mark{5, "y"})
		refused(Mark{4, "x"})
		done = admit("a", Mark{7, "z"})

		// A waiter is judged when it is its turn.
		var order []string
		var all sync.WaitGroup
		all.Go(func() {
			d, err := l.Admit(t.Context(), "a", Mark{8, "z"})
			order = append(order, "later")
			if err != nil {
				t.Error(err)
				return
			}
			d()
		})
		synctest.Wait()
		if len(order) != 0 {
			t.Error("two are admitted at once")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Admit(ctx, "a", Mark{9, "z"}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrStale) {
			t.Errorf("a wait that ended: %v", err)
		}
		done()
		all.Wait()
		refused(Mark{7, "z"})
		if _, err := l.Admit(ctx, "a", Mark{9, "z"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("under a context that ended: %v", err)
		}
		for resource, m := range map[string]Mark{"": {1, "a"}, strings.Repeat("x", 256): {1, "a"}, "a": {0, "a"}, "b": {1, ""}} {
			if _, err := l.Admit(t.Context(), resource, m); !errors.Is(err, dlock.ErrInvalid) {
				t.Errorf("%q, %+v: %v", resource, m, err)
			}
		}
	})
}

// TestLocalLosesNothing has holders that are stopped at random, with marks that grow: what they
// count under Admit is right.
func TestLocalLosesNothing(t *testing.T) {
	var l Local
	var all sync.WaitGroup
	var in, count, admitted atomic.Int64
	for i := range 200 {
		all.Go(func() {
			done, err := l.Admit(t.Context(), "a", Mark{dlock.Token(1 + i/2), "x"})
			if err != nil {
				return
			}
			defer done()
			if in.Add(1) != 1 {
				t.Error("two are admitted at once")
			}
			n := count.Load()
			admitted.Add(1)
			count.Store(n + 1)
			in.Add(-1)
		})
	}
	all.Wait()
	if admitted.Load() == 0 || count.Load() != admitted.Load() {
		t.Errorf("%d were admitted, and %d counted", admitted.Load(), count.Load())
	}
}
