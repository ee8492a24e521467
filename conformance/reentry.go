package conformance

import (
	"context"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var reentry = []Law{
	{Name: "reenter", run: reenter,
		Sentence: "a Lock under a lease's context re-enters the same name without a call, with the same token, and the lock is free only after the last Unlock"},
	{Name: "own-name-only", run: ownNameOnly,
		Sentence: "a Lock under a lease's context re-enters that name and no other: two goroutines under the context exclude each other on a second name"},
	{Name: "join", run: join, needs: []need{joining},
		Sentence: "a client that was passed the owner joins the hold at once, ahead of waiters, with the same token, and the lock is free only after the last Unlock"},
	{Name: "join-over", run: joinOver, needs: []need{joining, inspecting},
		Sentence: "a join to a hold that has ended, or never began, fails with ErrLost, adds nothing to the queue and does not affect a successor"},
	{Name: "downgrade", run: downgrade, needs: []need{joining, sharing},
		Sentence: "an exclusive holder may join its hold as a reader and release the exclusive lease: then readers are admitted, and no writer was admitted in between"},
	{Name: "upgrade", run: upgrade, needs: []need{joining, sharing},
		Sentence: "an exclusive request under a shared hold fails with ErrUpgrade at once, and affects no other request"},
}

func reenter(e *env) {
	a, b, name := e.peer(), e.client(), e.name()
	outer := e.lock(a.Mutex(name))
	other := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	ctx := outer.Context(e.ctx)
	before := a.injector.Calls() // at the interface: the driver may make calls of its own
	inner := e.lockIn(ctx, a.Mutex(name))
	for range 10 {
		e.unlock(e.lockIn(ctx, a.Mutex(name)))
	}
	if n := a.injector.Calls() - before; n != 0 {
		e.Errorf("re-entry made %d calls", n)
	}
	if inner.Token() != outer.Token() {
		e.Errorf("the hold has token %d, its re-entry %d", outer.Token(), inner.Token())
	}
	e.stands(name, 1, 1)
	e.unlock(outer)
	e.mustBeHeld(b.Mutex(name), "one of two leases of the hold was not released")
	e.stays("the other waits while one of two leases is held", other.pending)
	e.unlock(inner)
	e.unlock(other.got(e))
	_, err := e.tryIn(context.WithoutCancel(ctx), a.Mutex(name))
	e.want("re-entering a hold that was released", err, dlock.ErrLost)
	e.becomes(name, 0, 0)
}

func ownNameOnly(e *env) {
	c, name, second := e.client(), e.name(), e.name()
	l := e.lock(c.Mutex(name))
	ctx := l.Context(e.ctx)
	first := e.lockIn(ctx, c.Mutex(second))
	if _, err := e.tryIn(ctx, c.Mutex(second)); err == nil {
		e.Fatalf("two goroutines under one lease's context both hold a second name")
	} else {
		e.want("TryLock of the second name", err, dlock.ErrHeld)
	}
	other := e.beginIn(ctx, c.Mutex(second))
	e.becomes(second, 1, 1)
	other.mustWait(e, "the other goroutine holds the second name")
	e.unlock(first)
	e.unlock(other.got(e))
	e.unlock(l)
}

// handed returns a context with the lease's owner as another process gets it: parsed from text.
func (e *env) handed(l *dlock.Lease) context.Context {
	e.Helper()
	o, err := dlock.ParseOwner(l.Owner().String())
	if err != nil {
		e.Fatalf("ParseOwner: %v", err)
	}
	return dlock.WithOwner(e.ctx, o)
}

func join(e *env) {
	a, b, c, name := e.client(), e.client(), e.client(), e.name()
	first := e.lock(a.Mutex(name))
	other := e.begin(c.Mutex(name))
	e.becomes(name, 1, 1)
	second := e.lockIn(e.handed(first), b.Mutex(name))
	e.stands(name, 2, 1)
	if second.Token() != first.Token() {
		e.Errorf("a hold with token %d was joined with token %d", first.Token(), second.Token())
	}
	e.unlock(first)
	e.mustBeHeld(c.Mutex(name), "a join still holds it")
	third, err := e.tryIn(e.handed(second), a.Mutex(name)) // a join keeps the hold of the owner
	if err != nil {
		e.Fatalf("join to a hold that only a join keeps: %v", err)
	}
	if third.Token() != first.Token() {
		e.Errorf("a hold with token %d was joined with token %d", first.Token(), third.Token())
	}
	e.unlock(second)
	e.stays("another owner waits while a join holds", other.pending)
	e.unlock(third)
	l := other.got(e)
	e.unlock(l)
	e.becomes(name, 0, 0)
}

func joinOver(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	gone := e.lock(a.Mutex(name))
	ctx := e.handed(gone)
	e.unlock(gone)
	_, err := e.tryIn(ctx, b.Mutex(name))
	e.want("a join to a hold that was released", err, dlock.ErrLost)
	e.stands(name, 0, 0)

	l := e.lock(a.Mutex(name))
	err = e.beginIn(ctx, b.Mutex(name)).wait(e)
	e.want("a join to the predecessor of the current hold", err, dlock.ErrLost)
	e.stands(name, 1, 0)

	if e.caps.Queue {
		d := e.direct()
		waits := d.ask(name)
		waits.Wait = true
		done := d.begin(waits)
		e.becomes(name, 1, 1)
		_, err = d.acquire(d.join(waits, 0))
		e.want("a join to an owner that waits", err, driver.ErrLost)
		e.stands(name, 1, 1)
		e.unlock(l)
		if g := d.receive(done); g.err != nil {
			e.Fatalf("the owner that waited: %v", g.err)
		}
		if err := d.release(waits); err != nil {
			e.Fatalf("Release: %v", err)
		}
	} else {
		e.unlock(l)
	}
	e.becomes(name, 0, 0)
}

func downgrade(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	w := e.lock(a.RWMutex(name).Write())
	writer := e.begin(b.RWMutex(name).Write())
	e.becomes(name, 1, 1)
	r := e.lockIn(w.Context(e.ctx), a.RWMutex(name).Read())
	if r.Token() != w.Token() {
		e.Errorf("the hold has token %d, its reader %d", w.Token(), r.Token())
	}
	e.unlock(w)
	e.stays("a writer waits while the downgraded hold reads", writer.pending)
	writer.cancel()
	writer.wait(e)
	e.becomes(name, 1, 0)
	other := e.lock(b.RWMutex(name).Read())
	e.mustBeHeld(b.RWMutex(name).Write(), "readers hold")
	e.unlock(r)
	e.unlock(other)
	e.becomes(name, 0, 0)
}

func upgrade(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	r := e.lock(a.RWMutex(name).Read())
	ctx := r.Context(e.ctx)
	e.want("Lock", e.beginIn(ctx, a.RWMutex(name).Write()).wait(e), dlock.ErrUpgrade)
	_, err := e.tryIn(ctx, a.RWMutex(name).Write())
	e.want("TryLock", err, dlock.ErrUpgrade)
	e.want("Lock from another client", e.beginIn(e.handed(r), b.RWMutex(name).Write()).wait(e), dlock.ErrUpgrade)
	e.stands(name, 1, 0)
	if err := r.Err(); err != nil {
		e.Errorf("the shared hold was affected: %v", err)
	}
	other := e.try(b.RWMutex(name).Read())
	e.unlock(r)
	e.unlock(other)
	e.unlock(e.lock(b.RWMutex(name).Write()))
	e.becomes(name, 0, 0)
}
