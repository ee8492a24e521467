package conformance

import (
	"context"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var reentry = []Law{
	{Name: "reenter", run: reenter,
		Sentence: "a lease's context re-enters its name without a call, with the same token, and the lock is free only after the last give-back"},
	{Name: "own-name-only", run: ownNameOnly,
		Sentence: "a lease's context re-enters its own name and no other: two goroutines under it exclude each other on a second name"},
	{Name: "join", run: join, needs: []need{joining},
		Sentence: "an owner handed to another client joins at once, ahead of waiters, with the same token, and the lock is free only after the last give-back"},
	{Name: "join-over", run: joinOver, needs: []need{joining, inspecting},
		Sentence: "a join to a hold that is over, or never began, is ErrLost, queues nothing and harms no successor"},
	{Name: "downgrade", run: downgrade, needs: []need{joining, sharing},
		Sentence: "who holds exclusively may join as a reader and give the exclusive lease back: then readers may enter, and no writer was in between"},
	{Name: "upgrade", run: upgrade, needs: []need{joining, sharing},
		Sentence: "exclusive asked under a shared hold is ErrUpgrade at once, and harms nobody"},
}

func reenter(e *env) {
	a, b, name := e.peer(), e.client(), e.name()
	outer := e.lock(a.Mutex(name))
	other := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	ctx := outer.Context(e.ctx)
	before := a.injector.Calls() // at the interface: the driver may have work of its own
	inner := e.lockIn(ctx, a.Mutex(name))
	for range 10 {
		e.unlock(e.lockIn(ctx, a.Mutex(name)))
	}
	if n := a.injector.Calls() - before; n != 0 {
		e.Errorf("re-entry made %d calls", n)
	}
	if inner.Token() != outer.Token() {
		e.Errorf("token %d re-entered as %d", outer.Token(), inner.Token())
	}
	e.stands(name, 1, 1)
	e.unlock(outer)
	e.mustBeHeld(b.Mutex(name), "one of two leases of the hold was not given back")
	e.stays("the other waits while one of two leases is out", other.pending)
	e.unlock(inner)
	e.unlock(other.got(e))
	_, err := e.tryIn(context.WithoutCancel(ctx), a.Mutex(name))
	e.want("re-entering a hold that was given back", err, dlock.ErrLost)
	e.becomes(name, 0, 0)
}

func ownNameOnly(e *env) {
	c, name, second := e.client(), e.name(), e.name()
	l := e.lock(c.Mutex(name))
	ctx := l.Context(e.ctx)
	first := e.lockIn(ctx, c.Mutex(second))
	if _, err := e.tryIn(ctx, c.Mutex(second)); err == nil {
		e.Fatalf("two goroutines under one lease's context are both in on a second name")
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

// handed returns a context that carries the lease's owner as another process gets it: as text.
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
	e.mustBeHeld(c.Mutex(name), "a join holds on")
	third, err := e.tryIn(e.handed(second), a.Mutex(name)) // the owner lives on in its join
	if err != nil {
		e.Fatalf("join to what a join holds: %v", err)
	}
	if third.Token() != first.Token() {
		e.Errorf("a hold with token %d was joined with token %d", first.Token(), third.Token())
	}
	e.unlock(second)
	e.stays("another owner waits while a join holds on", other.pending)
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
	e.want("a join to a hold that was given back", err, dlock.ErrLost)
	e.stands(name, 0, 0)

	l := e.lock(a.Mutex(name))
	err = e.beginIn(ctx, b.Mutex(name)).wait(e)
	e.want("a join to the predecessor of the holder", err, dlock.ErrLost)
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
		e.Errorf("the shared hold was harmed: %v", err)
	}
	other := e.try(b.RWMutex(name).Read())
	e.unlock(r)
	e.unlock(other)
	e.unlock(e.lock(b.RWMutex(name).Write()))
	e.becomes(name, 0, 0)
}
