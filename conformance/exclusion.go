package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var exclusion = []Law{
	{Name: "one-holder", run: oneHolder, stall: tenthOfRenewedTTL,
		Sentence: "an exclusive lock has one holder at a time: a counter that only the lock guards is right"},
	{Name: "try-held", run: tryHeld,
		Sentence: "a second owner's TryLock fails with ErrHeld at once, leaves nothing in the queue, and does not disturb later requests"},
	{Name: "owner-not-client", run: ownerNotClient,
		Sentence: "a lock is held by an owner, not by a client: two owners of one client exclude each other"},
}

func oneHolder(e *env) {
	const goroutines, rounds = 9, 5
	name := e.name()
	clients := []*dlock.Client{e.client(), e.client(), e.client()}
	var inside, entered, count, unknown atomic.Int64
	// excused: a call that a busy service did not answer says nothing about the holder.
	excused := func(ctx context.Context, err error) bool {
		for _, no := range []error{dlock.ErrHeld, dlock.ErrLost, dlock.ErrNotHeld, dlock.ErrClosed, dlock.ErrInvalid, dlock.ErrUnsupported} {
			if errors.Is(err, no) {
				return false
			}
		}
		return err != nil && ctx.Err() == nil && unknown.Add(1) <= goroutines
	}
	e.together(goroutines, func(ctx context.Context, i int) error {
		for range rounds {
			l, err := clients[i%len(clients)].Mutex(name).Lock(ctx)
			if excused(ctx, err) {
				pause(e.patience / 50)
				continue
			}
			if err != nil {
				return err
			}
			entered.Add(1)
			if n := inside.Add(1); n != 1 {
				e.strict().Errorf("%d owners hold the lock at once", n)
			}
			n := count.Load()
			pause(time.Millisecond)
			count.Store(n + 1)
			inside.Add(-1)
			if err := l.Unlock(ctx); err != nil && !excused(ctx, err) {
				return err
			}
		}
		return nil
	})
	if n, want := count.Load(), entered.Load(); n != want {
		e.strict().Errorf("the counter is %d; want %d", n, want)
	}
}

func tryHeld(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	for range 3 {
		e.mustBeHeld(b.Mutex(name), "another client holds it")
		e.stands(name, 1, 0)
	}
	e.unlock(held)
	e.unlock(e.try(b.Mutex(name)))
	e.becomes(name, 0, 0)
}

func ownerNotClient(e *env) {
	c, name := e.client(), e.name()
	first := e.lock(c.Mutex(name))
	e.mustBeHeld(c.Mutex(name), "another owner of the same client holds it")
	second := e.begin(c.Mutex(name))
	e.becomes(name, 1, 1)
	second.mustWait(e, "another owner of the same client holds the lock")
	e.unlock(first)
	l := second.got(e)
	e.mustBeHeld(c.Mutex(name), "the second owner holds it now")
	e.unlock(l)
	e.becomes(name, 0, 0)
}
