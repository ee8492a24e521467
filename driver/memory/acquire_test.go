package memory

import (
	"context"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestReadersAndSemaphores(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r1, w1, r2 := permit("rw", 0), ask("rw"), permit("rw", 0)
		must(t, a, r1)
		must(t, b, permit("rw", 0))
		writer := start(t.Context(), a, w1)
		reader := start(t.Context(), b, r2)
		waits(t, reader) // behind the writer
		wants(t, a.Release(t.Context(), w1), nil)
		wants(t, returns(t, writer).err, driver.ErrLost)
		wants(t, returns(t, reader).err, nil)

		p := permit("sem", 2)
		must(t, a, p)
		must(t, b, permit("sem", 2))
		_, err := a.Acquire(t.Context(), try("sem"))
		wants(t, err, driver.ErrConflict)
		w := start(t.Context(), a, permit("sem", 2))
		waits(t, w)
		wants(t, a.Release(t.Context(), p), nil)
		wants(t, returns(t, w).err, nil)
	})
}

func TestJoin(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		g := must(t, a, r)
		w := start(t.Context(), b, ask("lock"))
		j, k := join(r), join(r)
		k.Mode = driver.Shared
		if got := must(t, b, j); got.Token != g.Token {
			t.Fatalf("token %d of a join to %d", got.Token, g.Token)
		}
		must(t, a, k)
		wants(t, a.Release(t.Context(), r), nil)
		wants(t, b.Release(t.Context(), j), nil)
		_, err := b.Acquire(t.Context(), join(r)) // Exclusive, but only Shared is left
		wants(t, err, driver.ErrUpgrade)
		waits(t, w)
		time.Sleep(ttl) // the last part of the hold expires
		wants(t, returns(t, w).err, nil)
		_, err = b.Acquire(t.Context(), join(r))
		wants(t, err, driver.ErrLost)
	})
}

func TestSameRequestTwiceIsOne(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		first := must(t, a, r)
		time.Sleep(ttl - 1)
		if again := must(t, a, r); again.Token != first.Token || !again.SentAt.Equal(time.Now()) {
			t.Fatalf("%+v, resumed as %+v", first, again)
		}
		other := r
		other.Name = "another"
		if _, err := a.Acquire(t.Context(), other); err == nil {
			t.Fatal("one ID is in use for two names")
		}
		wants(t, a.Release(t.Context(), other), driver.ErrLost)

		time.Sleep(ttl - 1) // still held: its TTL began again
		waiting := ask("lock")
		w1, w2 := start(t.Context(), b, waiting), start(t.Context(), b, waiting)
		wants(t, a.Release(t.Context(), r), nil)
		g1, g2 := returns(t, w1), returns(t, w2)
		if g1 != g2 || g1.err != nil {
			t.Fatalf("%+v and %+v", g1, g2)
		}
		wants(t, b.Release(t.Context(), waiting), nil)
		empty(t, a.space)
	})
}

func TestTryLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		h := permit("lock", 0)
		must(t, a, h)
		_, err := b.Acquire(t.Context(), try("lock"))
		wants(t, err, driver.ErrHeld)

		r := ask("lock")
		writer := start(t.Context(), b, r)
		reader := start(t.Context(), b, permit("lock", 0))
		r.Wait = false
		_, err = b.Acquire(t.Context(), r) // changed its mind
		wants(t, err, driver.ErrHeld)
		wants(t, returns(t, writer).err, driver.ErrLost)
		wants(t, returns(t, reader).err, nil)
		if q, _ := a.Inspect(t.Context(), "lock"); q.Len() != 2 {
			t.Fatalf("%d requests are in the queue", q.Len())
		}
	})
}

func TestAllocations(t *testing.T) {
	b := open(t, nil)
	defer b.Close()
	r := ask("lock")
	if n := testing.AllocsPerRun(1000, func() {
		b.Acquire(t.Context(), r)
		b.Release(t.Context(), r)
	}); n > 3 { // the queue, its slice, the request
		t.Errorf("%v allocations to lock and unlock", n)
	}
}

func TestContextThatIsOverNeverAcquires(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Acquire(ctx, ask("lock"))
	wants(t, err, context.Canceled)
	empty(t, b.space)
}
