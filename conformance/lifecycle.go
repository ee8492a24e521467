package conformance

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var lifecycle = []Law{
	{Name: "close-frees", run: closeFrees,
		Sentence: "Close releases the client's holds and removes its waiting requests, long before the TTL"},
	{Name: "close-wakes", run: closeWakes,
		Sentence: "Close makes calls under way return ErrClosed, ends the leases' contexts with that cause, and every later call fails with it"},
	{Name: "close-cut-off", run: closeCutOff, stall: tenthOfShortTTL,
		Sentence: "Close of a client that is cut off takes at most a few seconds, and its error names what may be left"},
	{Name: "close-leaks-nothing", run: closeLeaksNothing, stall: tenthOfShortTTL, alone: true,
		Sentence: "after Close no goroutine of the client is left, whatever was locked, cancelled or lost"},
	{Name: "durable", run: durableHolds, needs: []need{durable, restarting}, alone: true,
		Sentence: "a hold survives a restart of the service where Capabilities say Durable"},
}

func closeFrees(e *env) {
	a, b := e.client(), e.client()
	held, wanted := e.name(), e.name()
	e.lock(a.Mutex(held))
	next := e.begin(b.Mutex(held))
	e.becomes(held, 1, 1)
	l := e.lock(b.Mutex(wanted))
	e.begin(a.Mutex(wanted))
	e.becomes(wanted, 1, 1)
	behind := e.begin(b.Mutex(wanted))
	e.becomes(wanted, 1, 2)
	e.close(a)
	e.unlock(next.got(e))
	e.becomes(wanted, 1, 1)
	e.unlock(l)
	e.unlock(behind.got(e))
	e.becomes(held, 0, 0)
	e.becomes(wanted, 0, 0)

	d, name := e.direct(), e.name() // the driver removes what dlock does not know
	d.get(d.ask(name))
	waits := d.ask(held)
	waits.Wait = true
	l = e.lock(b.Mutex(held))
	done := d.begin(waits)
	e.becomes(held, 1, 1)
	e.close(d)
	e.unlock(e.lock(b.Mutex(name)))
	e.becomes(held, 1, 0)
	d.receive(done)
	e.unlock(l)
}

func closeWakes(e *env) {
	a, b, name, held := e.client(), e.client(), e.name(), e.name()
	l := e.lock(a.Mutex(held))
	ctx := l.Context(e.ctx)
	e.lock(b.Mutex(name))
	waits := e.begin(a.Mutex(name))
	e.becomes(name, 1, 1)
	d := e.direct()
	r := d.ask(name)
	done := make(<-chan grantOrError)
	if e.caps.Queue {
		r.Wait = true
		done = d.begin(r)
		e.becomes(name, 1, 2)
	}
	for range 2 {
		e.close(a)
		e.close(d)
	}
	e.want("Lock that waited at Close", waits.wait(e), dlock.ErrClosed)
	if e.caps.Queue {
		e.want("Acquire that waited at Close", d.receive(done).err, driver.ErrClosed)
	}
	if ctx.Err() == nil {
		e.Errorf("Close did not end the context of a lease")
	} else {
		e.want("its cause", context.Cause(ctx), dlock.ErrClosed)
	}
	select {
	case <-l.Lost():
		e.Errorf("Close closed Lost")
	default:
	}
	e.want("Unlock after Close", e.unlockErr(l), dlock.ErrClosed)
	e.want("Lock after Close", e.begin(a.Mutex(name)).wait(e), dlock.ErrClosed)
	_, err := d.acquire(d.ask(e.name()))
	e.want("Acquire after Close", err, driver.ErrClosed)
	e.want("Release after Close", d.release(r), driver.ErrClosed)
	e.want("Renew after Close", d.renew(r).Err, driver.ErrClosed)
	_, err = e.inspectWith(d, name)
	if e.caps.Inspect {
		e.want("Inspect after Close", err, driver.ErrClosed)
	}
	e.becomes(name, 1, 0)
}

func closeCutOff(e *env) {
	p, b, name, held := e.peer(dlock.TTL(e.shortTTL)), e.client(), e.name(), e.name()
	l := e.lock(p.Mutex(held))
	e.lock(b.Mutex(name))
	waits := e.begin(p.Mutex(name))
	e.becomes(name, 1, 1)
	p.partition()
	start := time.Now()
	call(e, "Close cut off", func(context.Context) error { return p.Close() })
	if took := time.Since(start); took > 15*time.Second {
		e.Errorf("Close cut off took %s", took)
	}
	e.want("Lock that waited at Close", waits.wait(e), dlock.ErrClosed)
	e.want("the lease", l.Err(), dlock.ErrClosed)
	e.unlock(e.lock(b.Mutex(held))) // when its TTL has passed

	o, left := e.peer(), e.name() // left until its TTL has passed
	e.lock(o.Mutex(left))
	o.partition()
	err := call(e, "Close cut off", func(context.Context) error { return o.Close() })
	if err == nil || !strings.Contains(err.Error(), left) {
		e.Errorf("Close of a client that was cut off while it held %s: %v", left, err)
	}

	q := e.peer() // for the driver without dlock
	e.lock(q.Mutex(e.name()))
	q.partition()
	start = time.Now()
	call(e, "Close of the backend cut off", func(context.Context) error { return q.injector.Close() })
	if took := time.Since(start); took > 8*time.Second {
		e.Errorf("Close of the backend cut off took %s", took)
	}
}

func closeLeaksNothing(e *env) {
	const waits, clients, slack = 20, 10, 6 // a few goroutines of a process come and go
	other, name := e.client(), e.name()
	l := e.lock(other.Mutex(name))
	comeAndGo := func() {
		for i := range clients {
			p := e.peer(dlock.TTL(e.shortTTL))
			e.together(waits, func(ctx context.Context, i int) error {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(i)*time.Millisecond/4)
				defer cancel()
				if _, err := p.Mutex(name).Lock(ctx); err == nil {
					return errors.New("a Lock succeeded although another holds")
				}
				return nil
			})
			held := e.served(p.Mutex(e.name()))
			if i == 0 {
				heal := p.partition()
				e.until("the lease is lost", func() bool { return held.Err() != nil })
				heal()
			}
			e.visit(p.Mutex(e.name()))
			e.close(p)
			e.close(p.b)
		}
	}
	// open clients open new connections at times, up to a bound; a leak grows whenever clients come
	// and go
	var counts []int
	for range 3 {
		before := goroutines()
		comeAndGo()
		for end := time.Now().Add(e.patience / 2); goroutines() > before+slack && time.Now().Before(end); {
			pause(e.patience / 50)
		}
		now := goroutines()
		if counts = append(counts, before, now); now <= before+slack {
			e.unlock(l)
			return
		}
	}
	e.strict().Fatalf("goroutines before and after %d clients came and went, each time again: %v", clients, counts)
}

func durableHolds(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	l := e.lock(a.Mutex(name))
	e.h.Restart(e.T)
	e.mustBeHeld(b.Mutex(name), "its hold survives the restart")
	if err := call(e, "Renew", l.Renew); err != nil {
		e.Errorf("Renew after the restart: %v", err)
	}
	e.unlock(l)
	e.unlock(e.lock(b.Mutex(name)))
}
