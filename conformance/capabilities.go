package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var capabilities = []Law{
	{Name: "capabilities", run: capabilitiesTrue, stall: tenthOfShortTTL,
		Sentence: "what Capabilities claim works; what they deny fails with ErrUnsupported and leaves nothing behind"},
	{Name: "inspect-age", run: inspectAge, needs: []need{inspecting, queueing},
		Sentence: "the age of a request that has waited counts from its arrival, also once it holds"},
	{Name: "inspect", run: inspectTrue, stall: tenthOfRenewedTTL, needs: []need{inspecting, queueing},
		Sentence: "Inspect shows holders and waiters in order, with their IDs, owners, clients, modes, limits, tokens, labels and remaining time"},
}

func capabilitiesTrue(e *env) {
	d, caps := e.direct(), e.caps
	// a backend without the interface has the zero Capabilities
	if c, ok := d.Backend.(driver.Capable); ok && c.Capabilities() != caps {
		e.Errorf("two clients of one service have different Capabilities: %+v and %+v", caps, c.Capabilities())
	}
	if caps.Backend == "" {
		e.Errorf("Capabilities.Backend is empty")
	}
	if caps.MinTTL < 0 || caps.MaxTTL < 0 || caps.MaxTTL > 0 && caps.MaxTTL < caps.MinTTL {
		e.Errorf("MinTTL is %s and MaxTTL %s", caps.MinTTL, caps.MaxTTL)
	}
	if caps.MaxFixed < 0 || caps.MaxFixed > 0 && caps.MaxFixed < max(caps.MaxTTL, caps.MinTTL) {
		e.Errorf("MaxFixed is %s, and MaxTTL %s", caps.MaxFixed, caps.MaxTTL)
	}
	name := e.name()
	claim := func(what string, claimed bool, err error) {
		e.Helper()
		if claimed && err != nil {
			e.Errorf("Capabilities claim %s, and it failed: %v", what, err)
		}
		if !claimed && !errors.Is(err, driver.ErrUnsupported) {
			e.Errorf("Capabilities deny %s, and the error was %v; want ErrUnsupported", what, err)
		}
	}
	acquire := func(change func(*driver.Request)) error {
		r := d.ask(name)
		change(&r)
		_, err := d.acquire(r)
		if err == nil {
			err = d.release(r)
		}
		if caps.Inspect {
			e.stands(name, 0, 0)
		}
		return err
	}
	claim("Shared", caps.Shared, acquire(func(r *driver.Request) { r.Mode = driver.Shared }))
	claim("Semaphores", caps.Semaphores, acquire(func(r *driver.Request) { r.Mode, r.Limit = driver.Shared, 2 }))
	claim("locks with the least TTL", true, acquire(func(r *driver.Request) { r.TTL = max(caps.MinTTL, e.shortTTL) }))
	if caps.MaxTTL > 0 {
		claim("locks with the greatest TTL", true, acquire(func(r *driver.Request) { r.TTL = caps.MaxTTL }))
	}
	_, err := e.inspectWith(d, name)
	claim("Inspect", caps.Inspect, err)

	held := d.ask(name)
	g := d.get(held)
	if (g.Token != 0) != caps.Fencing {
		e.Errorf("Capabilities.Fencing is %v, and the token is %d", caps.Fencing, g.Token)
	}
	j := d.join(held, g.Token)
	_, err = d.acquire(j)
	claim("Joins", caps.Joins, err)
	if err == nil {
		err = d.release(j)
		claim("Joins", true, err)
	}
	err = driver.ErrUnsupported
	if _, ok := d.Backend.(driver.Raiser); ok {
		err = d.raise(held, g.Token)
	}
	claim("Raises", caps.Raises, err)
	e.queues(d, name)
	if err := d.release(held); err != nil {
		e.Fatalf("Release: %v", err)
	}
	e.becomes(name, 0, 0) // the request of the cancelled wait may go a little later

	client := e.client()
	l, err := e.tryIn(e.ctx, client.RWMutex(name).Read())
	claim("Shared", caps.Shared, err)
	if err == nil {
		e.unlock(l)
	}
	l, err = e.tryIn(e.ctx, client.Semaphore(name, 2))
	claim("Semaphores", caps.Semaphores, err)
	if err == nil {
		e.unlock(l)
	}
	if client.Capabilities() != caps {
		e.Errorf("the client's Capabilities differ from the backend's")
	}
	if b, ok := d.Backend.(driver.Breaker); ok {
		err := call(e, "Break", func(ctx context.Context) error { return b.Break(ctx, name, 1, false) })
		e.want("Break of a name that is not held", err, driver.ErrNotHeld)
	} else {
		e.want("Break", e.breakIt(client, name, 1), dlock.ErrUnsupported)
	}
}

// queues fails the law unless a request that has to wait does so. A backend that does not queue may
// return a *driver.RetryError at once instead.
func (e *env) queues(d *direct, name string) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	defer time.AfterFunc(e.shortTTL/2, cancel).Stop()
	r := d.ask(name)
	r.Wait = true
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, r)
		done <- err
	}()
	select {
	case err := <-done:
		retry := (*driver.RetryError)(nil)
		switch again := errors.As(err, &retry); {
		case e.caps.Queue && (again || ctx.Err() == nil):
			e.Errorf("Capabilities claim Queue, and a request that has to wait returned %v", err)
		case !e.caps.Queue && !again && !driver.HasWaited(err):
			e.Errorf("Capabilities deny Queue, and a request that has to wait returned %v; want a *driver.RetryError, or a wait until its context ends", err)
		case again && retry.After < 0:
			e.Errorf("retry after %s", retry.After)
		}
	case <-time.After(e.patience):
		e.Fatalf("Acquire does not return")
	}
}

func inspectAge(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	next := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	arrived := time.Now()
	pause(e.shortTTL / 2)
	waited := time.Since(arrived)
	e.unlock(held)
	l := next.got(e)
	q := e.inspect(name)
	if len(q.Holders()) != 1 {
		e.Fatalf("Inspect shows %s; want one holder", show(q))
	}
	if got := q.Holders()[0].Age; got < waited*9/10-10*time.Millisecond {
		e.Errorf("the holder had waited for %s, and Inspect shows an age of %s", waited, got)
	}
	e.unlock(l)
}

func inspectTrue(e *env) {
	name := e.name()
	d, f := e.direct(), e.direct()
	holder, waiter := d.ask(name), f.ask(name)
	holder.Label, waiter.Label, waiter.Wait = "the holder", "the waiter ✓", true
	if e.caps.Semaphores {
		holder.Mode, holder.Limit = driver.Shared, 1
		waiter.Mode, waiter.Limit = driver.Shared, 3
	}
	began := time.Now()
	g := d.get(holder)
	done := f.begin(waiter)
	e.becomes(name, 1, 1)
	pause(e.shortTTL / 4)
	q := e.inspect(name)
	if len(q.Holders()) != 1 || len(q.Waiters()) != 1 {
		e.Fatalf("Inspect shows %s; want one holder and one waiter", show(q))
	}
	for i, want := range []driver.Request{holder, waiter} {
		got := append(q.Holders(), q.Waiters()...)[i]
		r := got.Request
		if r.Name != name || r.ID != want.ID || r.Owner != want.Owner || r.Client != want.Client ||
			r.Mode != want.Mode || r.Limit != want.Limit || r.Label != want.Label {
			e.Errorf("Inspect shows %+v; want %+v", r, want)
		}
		if got.Left <= 0 || got.Left > want.TTL+time.Second {
			e.Errorf("Inspect shows %s left of a TTL of %s", got.Left, want.TTL)
		}
		if most := time.Since(began) + time.Second; got.Age < 0 || got.Age > most {
			e.Errorf("Inspect shows an age of %s; want at most %s", got.Age, most)
		}
	}
	if t := q.Holders()[0].Token; t != g.Token {
		e.Errorf("Inspect shows token %d; the grant had token %d", t, g.Token)
	}
	if err := d.release(holder); err != nil {
		e.Fatalf("Release: %v", err)
	}
	if res := f.receive(done); res.err != nil {
		e.Fatalf("Acquire: %v", res.err)
	}
	if err := f.release(waiter); err != nil {
		e.Fatalf("Release: %v", err)
	}
	if q := e.inspect(name); q.Len() != 0 {
		e.Errorf("a free name shows %s", show(q))
	}
}
