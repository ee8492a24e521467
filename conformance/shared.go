package conformance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var shared = []Law{
	{Name: "readers-together", run: readersTogether, needs: []need{sharing},
		Sentence: "several readers may hold at once; a writer holds alone"},
	{Name: "neither-starves", run: neitherStarves, stall: tenthOfRenewedTTL, needs: []need{sharing, queueing, inspecting},
		Sentence: "readers that arrive after a waiting writer wait behind it, and writers that arrive after waiting readers wait behind those"},
	{Name: "semaphore-limit", run: semaphoreLimit, stall: tenthOfRenewedTTL, needs: []need{semaphores},
		Sentence: "a semaphore of n admits n owners at once, and never more"},
	{Name: "semaphore-smallest", run: semaphoreSmallest, stall: tenthOfRenewedTTL, needs: []need{semaphores},
		Sentence: "if clients use different limits, the smallest of those in use counts, for as long as it is in use"},
	{Name: "semaphore-order", run: semaphoreOrder, stall: tenthOfRenewedTTL, needs: []need{semaphores, queueing, inspecting},
		Sentence: "each released permit admits one waiter, the one that arrived first"},
}

func readersTogether(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	ra, rb := a.RWMutex(name), b.RWMutex(name)
	r1, r2, r3 := e.lock(ra.Read()), e.lock(rb.Read()), e.try(rb.Read())
	e.stands(name, 3, 0)
	e.mustBeHeld(ra.Write(), "readers hold it")
	e.unlock(r1)
	e.unlock(r3)
	e.mustBeHeld(ra.Write(), "a reader holds it")
	e.unlock(r2)
	w := e.lock(ra.Write())
	e.mustBeHeld(rb.Read(), "a writer holds it")
	e.mustBeHeld(rb.Write(), "a writer holds it")
	e.mustBeHeld(b.Mutex(name), "a writer holds it, and Mutex is the writer's side")
	e.unlock(w)
	e.unlock(e.lock(rb.Read()))
	e.becomes(name, 0, 0)
}

func neitherStarves(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	ra, rb := a.RWMutex(name), b.RWMutex(name)
	r1 := e.lock(ra.Read())
	w1 := e.begin(rb.Write())
	e.becomes(name, 1, 1)
	e.mustBeHeld(ra.Read(), "a writer waits ahead")
	r2 := e.begin(ra.Read())
	e.becomes(name, 1, 2)
	r3 := e.begin(rb.Read())
	e.becomes(name, 1, 3)
	w2 := e.begin(ra.Write())
	e.becomes(name, 1, 4)

	e.unlock(r1)
	l := w1.got(e)
	e.stands(name, 1, 3)
	for _, x := range []*attempt{r2, r3, w2} {
		x.mustWait(e.strict(), "a writer holds")
	}
	e.unlock(l)
	l2, l3 := r2.got(e), r3.got(e) // together
	e.stands(name, 2, 1)
	w2.mustWait(e.strict(), "readers hold")
	e.unlock(l2)
	e.stays("the last writer waits while one reader holds", w2.pending)
	e.unlock(l3)
	e.unlock(w2.got(e))
	e.becomes(name, 0, 0)
}

func semaphoreLimit(e *env) {
	const limit, goroutines, rounds = 3, 8, 4
	a, b, name := e.client(), e.client(), e.name()
	sa, sb := a.Semaphore(name, limit), b.Semaphore(name, limit)
	held := []*dlock.Lease{e.lock(sa), e.lock(sa), e.lock(sb)}
	e.stands(name, limit, 0)
	e.mustBeHeld(sa, "all permits are held")
	e.mustBeHeld(sb, "all permits are held")
	for _, l := range held {
		e.unlock(l)
	}
	var inside atomic.Int64
	e.together(goroutines, func(ctx context.Context, i int) error {
		s := sa
		if i%2 == 1 {
			s = sb
		}
		for range rounds {
			l, err := s.Lock(ctx)
			if err != nil {
				return err
			}
			if n := inside.Add(1); n > limit {
				e.strict().Errorf("%d owners hold a semaphore of %d", n, limit)
			}
			pause(time.Millisecond)
			inside.Add(-1)
			if err := l.Unlock(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	e.becomes(name, 0, 0)
}

func semaphoreSmallest(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	small, large := a.Semaphore(name, 2), b.Semaphore(name, 3)
	s := e.lock(small)
	l1 := e.lock(large)
	e.mustBeHeld(large, "an owner with limit 2 is one of two")
	e.unlock(s)
	l2, l3 := e.try(large), e.try(large)
	e.mustBeHeld(large, "three owners with limit 3 hold")
	e.unlock(l1)
	e.mustBeHeld(small, "two others hold, and its limit is 2")
	e.unlock(l2)
	s = e.try(small)
	e.mustBeHeld(large, "an owner with limit 2 is the second of two")
	e.unlock(s)
	e.unlock(l3)
	e.becomes(name, 0, 0)
}

func semaphoreOrder(e *env) {
	const limit = 2
	a, b, name := e.client(), e.client(), e.name()
	held := []*dlock.Lease{e.lock(a.Semaphore(name, limit)), e.lock(b.Semaphore(name, limit))}
	var line []*attempt
	for i := range 4 {
		line = append(line, e.begin([]*dlock.Client{a, b}[i%2].Semaphore(name, limit)))
		e.becomes(name, limit, i+1)
	}
	for i, next := range line {
		e.unlock(held[i])
		held = append(held, next.got(e))
		for _, later := range line[i+1:] {
			later.mustWait(e, "one permit was released, for the waiter before it")
		}
		e.becomes(name, limit, len(line)-i-1)
	}
	e.unlock(held[len(line)])
	e.unlock(held[len(line)+1])
	e.becomes(name, 0, 0)
}
