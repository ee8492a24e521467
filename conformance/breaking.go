package conformance

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var breaking = []Law{
	{Name: "break-wrong-token", run: breakWrongToken, needs: []need{breakable, fencing},
		Sentence: "Break with a token that no holder has fails with ErrNotHeld and changes nothing"},
	{Name: "break", run: breakPlain, stall: tenthOfRenewedTTL, needs: []need{breakable},
		Sentence: "a broken hold can neither be renewed nor joined, and its successor is granted within a TTL, but only after the holder was notified"},
	{Name: "break-release", run: breakRelease, needs: []need{breakable},
		Sentence: "the release of a broken hold frees the lock and returns ErrLost, also if no renewal was refused yet"},
	{Name: "break-release-again", run: breakReleaseAgain, needs: []need{breakable, holdingReplies},
		Sentence: "a Release of a broken hold that got no reply and is sent again returns ErrLost"},
	{Name: "break-release-known", run: breakReleaseKnown, stall: promptly, needs: []need{breakable},
		Sentence: "the release of a broken hold removes what is left of it, long before its TTL, also if its holder learned of the break from a renewal or from a repeated acquire"},
	{Name: "break-force", run: breakForce, needs: []need{breakable},
		Sentence: "a hold broken by force ends at once, and its holder can neither renew it nor release its successor"},
	{Name: "break-force-known", run: breakForceKnown, stall: promptly, needs: []need{breakable},
		Sentence: "a break by force ends the holder's context within a second, however far away its next renewal is, and ends no other hold: this holds for a lock among many, a fixed lease, a reader, a permit and joins"},
}

// breakIt calls Break.
func (e *env) breakIt(c *dlock.Client, name string, t dlock.Token, opts ...dlock.BreakOption) error {
	e.Helper()
	return call(e, "Break", func(ctx context.Context) error { return c.Break(ctx, name, t, opts...) })
}

func breakWrongToken(e *env) {
	a, op, name := e.client(), e.client(), e.name()
	before := e.lock(a.Mutex(name))
	old := before.Token()
	e.unlock(before)
	e.want("Break of a free lock", e.breakIt(op, name, old), dlock.ErrNotHeld)
	l := e.lock(a.Mutex(name))
	for _, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
		for _, t := range []dlock.Token{old, l.Token() + 1, 0} {
			e.want("Break with the token of no holder", e.breakIt(op, name, t, opts...), dlock.ErrNotHeld)
		}
	}
	e.mustBeHeld(op.Mutex(name), "nothing was broken")
	if err := call(e, "Renew", l.Renew); err != nil {
		e.Errorf("Renew after a Break that was refused: %v", err)
	}
	if e.caps.Joins {
		e.unlock(e.lockIn(e.handed(l), op.Mutex(name)))
	}
	e.unlock(l)
	e.becomes(name, 0, 0)
}

func breakPlain(e *env) {
	a, b, op, name := e.client(dlock.TTL(e.renewedTTL)), e.client(), e.client(), e.name()
	l := e.lock(a.Mutex(name))
	ctx := l.Context(e.ctx)
	next := e.begin(b.Mutex(name))
	if err := e.breakIt(op, name, l.Token()); err != nil {
		e.Fatalf("Break: %v", err)
	}
	broken := time.Now()
	if e.caps.Joins {
		_, err := e.tryIn(e.handed(l), op.Mutex(name))
		e.want("a join to a broken hold", err, dlock.ErrLost)
	}
	successor := next.got(e)
	if !l.Until().Before(next.at) && ctx.Err() == nil {
		e.strict().Errorf("the holder was not notified of the loss when its successor was granted")
	}
	if took := next.at.Sub(broken); took > e.renewedTTL+2*time.Second {
		e.Errorf("a broken hold with a TTL of %s ended after %s", e.renewedTTL, took)
	}
	e.until("the holder's context ended", func() bool { return ctx.Err() != nil })
	e.want("its cause", context.Cause(ctx), dlock.ErrLost)
	e.want("the holder's Unlock", e.unlockErr(l), dlock.ErrLost)
	if e.caps.Fencing {
		e.want("Break again, with the old token", e.breakIt(op, name, l.Token()), dlock.ErrNotHeld)
	}
	e.mustBeHeld(op.Mutex(name), "the successor holds it")
	e.unlock(successor)
}

// breakRelease uses the long TTL, so that neither a renewal nor the expiry of the hold comes first.
func breakRelease(e *env) {
	a, b, d, name := e.client(), e.client(), e.direct(), e.name()
	l := e.lock(a.Mutex(name))
	if err := e.breakIt(b, name, l.Token()); err != nil {
		e.Fatalf("Break: %v", err)
	}
	e.want("Unlock of a lease that was broken", e.unlockErr(l), dlock.ErrLost)
	e.unlock(e.lock(b.Mutex(name)))

	r := d.ask(name)
	g := d.get(r)
	if err := e.breakIt(b, name, g.Token); err != nil {
		e.Fatalf("Break: %v", err)
	}
	e.want("Release of a request that was broken", d.release(r), driver.ErrLost)
	e.unlock(e.lock(b.Mutex(name)))
	e.becomes(name, 0, 0)
}

func breakReleaseAgain(e *env) {
	p, b, name := e.peer(), e.client(), e.name()
	d := e.directOn(p.injector)
	r := d.ask(name)
	g := d.get(r)
	if err := e.breakIt(b, name, g.Token); err != nil {
		e.Fatalf("Break: %v", err)
	}
	heal := p.holdReplies()
	ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
	err := call(e, "Release", func(context.Context) error { return d.Release(ctx, r) })
	cancel()
	if err == nil {
		e.Errorf("Release without a reply returned nil")
	}
	heal()
	e.want("Release of a broken hold, sent again", d.release(r), driver.ErrLost)
	e.unlock(e.lock(b.Mutex(name)))
	e.becomes(name, 0, 0)
}

func breakForce(e *env) {
	a, b, op, name := e.client(), e.client(), e.client(), e.name()
	l := e.lock(a.Mutex(name))
	next := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	if err := e.breakIt(op, name, l.Token(), dlock.Force()); err != nil {
		e.Fatalf("Break: %v", err)
	}
	successor := next.got(e) // the first renewal of the broken hold would come too late for this
	e.want("the old holder's Renew", call(e, "Renew", l.Renew), dlock.ErrLost)
	e.want("the old holder's Unlock", e.unlockErr(l), dlock.ErrLost)
	if e.caps.Fencing {
		e.want("Break again, with the old token", e.breakIt(op, name, l.Token(), dlock.Force()), dlock.ErrNotHeld)
	}
	e.mustBeHeld(op.Mutex(name), "the successor holds it")
	if err := call(e, "Renew", successor.Renew); err != nil {
		e.Errorf("the successor's Renew: %v", err)
	}
	e.unlock(successor)
	e.becomes(name, 0, 0)
}

// breakReleaseKnown uses the long TTL, so that only the release can free the lock.
func breakReleaseKnown(e *env) {
	a, b, op, d := e.client(), e.client(), e.client(), e.direct()
	broken := func(name string, t dlock.Token) (next *attempt) {
		e.Helper()
		next = e.begin(b.Mutex(name))
		e.becomes(name, 1, 1)
		if err := e.breakIt(op, name, t); err != nil {
			e.Fatalf("Break: %v", err)
		}
		return next
	}
	freed := func(next *attempt, released time.Time) {
		e.Helper()
		l := next.got(e)
		if took := next.at.Sub(released); took > e.longTTL/8 {
			e.Errorf("a broken hold with a TTL of %s blocked the lock for %s after its release", e.longTTL, took)
		}
		e.unlock(l)
		e.becomes(next.name, 0, 0)
	}

	name := e.name()
	l := e.lock(a.Mutex(name))
	ctx, next := l.Context(e.ctx), broken(name, l.Token())
	e.want("Renew of a broken lease", call(e, "Renew", l.Renew), dlock.ErrLost)
	released := time.Now()
	e.until("its context ended", func() bool { return ctx.Err() != nil })
	e.want("Unlock of a broken lease that a renewal lost", e.unlockErr(l), dlock.ErrLost)
	freed(next, released)

	name = e.name()
	r := d.ask(name)
	next = broken(name, d.get(r).Token)
	for range 2 { // the first refused renewal may learn more than later ones
		e.want("Renew of a broken request", d.renew(r).Err, driver.ErrLost)
	}
	released = time.Now()
	e.want("Release of a broken request that a renewal lost", d.release(r), driver.ErrLost)
	freed(next, released)

	name = e.name()
	r = d.ask(name)
	next = broken(name, d.get(r).Token)
	released = time.Now()
	_, err := d.acquire(r) // the request is then released if anything of it is left
	e.want("Acquire of a broken request", err, driver.ErrLost)
	freed(next, released)
}

func breakForceKnown(e *env) {
	a, op := e.client(), e.client()
	for range 50 { // the broken hold is one of many, and the others stay
		e.lock(a.Mutex(e.name()))
	}
	ends := func(what, name string, broken *dlock.Lease, with []*dlock.Lease, others ...*dlock.Lease) {
		e.Helper()
		ctxs := []context.Context{broken.Context(e.ctx)}
		for _, l := range with {
			ctxs = append(ctxs, l.Context(e.ctx))
		}
		if err := e.breakIt(op, name, broken.Token(), dlock.Force()); err != nil {
			e.Fatalf("Break: %v", err)
		}
		start := time.Now()
		for _, ctx := range ctxs {
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(start.Add(e.patience))):
				e.Fatalf("%s was broken by force, and a holder's context has not ended after %s", what, e.patience)
			}
			if took := time.Since(start); took > time.Second {
				e.Errorf("%s was broken by force, and a holder's context ended %s later; want at most a second", what, took)
			}
			e.want("the context's cause", context.Cause(ctx), dlock.ErrLost)
		}
		for _, l := range others {
			if err := call(e, "Renew", l.Renew); err != nil {
				e.Errorf("%s was broken by force, and another hold cannot be renewed: %v", what, err)
			}
			e.unlock(l)
		}
		for _, l := range append(with, broken) {
			e.want("Unlock of a lease broken by force", e.unlockErr(l), dlock.ErrLost)
		}
		e.becomes(name, 0, 0)
	}

	name := e.name()
	ends("a lock", name, e.lock(a.Mutex(name)), nil)

	name = e.name()
	ends("a fixed lease", name, e.lock(a.Mutex(name, dlock.FixedLease(e.longTTL))), nil)

	if e.caps.Joins {
		name = e.name()
		l := e.lock(a.Mutex(name))
		ends("a hold that another client joined", name, l, []*dlock.Lease{e.lockIn(e.handed(l), e.client().Mutex(name))})
	}
	if e.caps.Shared && e.caps.Fencing {
		name = e.name()
		l := e.lock(a.RWMutex(name).Read())
		ends("one of two readers", name, l, nil, e.lock(e.client().RWMutex(name).Read()))
	}
	if e.caps.Semaphores && e.caps.Fencing {
		name = e.name()
		l := e.lock(a.Semaphore(name, 2))
		ends("one of two permits", name, l, nil, e.lock(e.client().Semaphore(name, 2)))
	}
}
