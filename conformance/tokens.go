package conformance

import (
	"context"
	"math"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var tokens = []Law{
	{Name: "tokens-grow", run: tokensGrow, needs: []need{fencing},
		Sentence: "the tokens of exclusive holders grow strictly: over releases, hand-offs, expiry and breaks, and after all clients left"},
	{Name: "tokens-shared", run: tokensShared, needs: []need{fencing, sharing},
		Sentence: "a reader's token is greater than those of earlier writers and smaller than those of later ones"},
	{Name: "tokens-clock", run: tokensClock, needs: []need{fencing, stepping}, alone: true,
		Sentence: "tokens grow even if the service's clock is set back"},
	{Name: "tokens-restart", run: tokensRestart, needs: []need{fencing, restarting}, alone: true,
		Sentence: "tokens grow across a restart of the service"},
	{Name: "raise", run: raise, stall: tenthOfShortTTL, needs: []need{fencing, raising},
		Sentence: "Raise makes the token of a hold and of its joins at least that of another backend, and all later tokens greater; of a request that does not hold it fails with ErrLost"},
}

// grows fails the law unless the token is greater than the one before, and returns it.
func (e *env) grows(since string, before, token dlock.Token) dlock.Token {
	e.Helper()
	if token <= before {
		e.Errorf("since %s the token went from %d to %d", since, before, token)
	}
	return token
}

// pass locks and unlocks, and returns the token.
func (e *env) pass(m dlock.Mutex) dlock.Token {
	e.Helper()
	l := e.lock(m)
	e.unlock(l)
	return l.Token()
}

func tokensGrow(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	t := e.grows("nothing", 0, e.pass(a.Mutex(name)))
	t = e.grows("a release", t, e.pass(b.Mutex(name)))
	l := e.lock(a.Mutex(name))
	t = e.grows("a release", t, l.Token())
	next := e.begin(b.Mutex(name))
	e.becomes(name, 1, 1)
	e.unlock(l)
	l = next.got(e)
	t = e.grows("a hand-off", t, l.Token())
	e.unlock(l)

	_, g := e.direct().expire(name)
	t = e.grows("a release", t, g.Token)
	l = e.lock(b.Mutex(name))
	t = e.grows("an expiry", t, l.Token())
	if _, ok := e.probe.(driver.Breaker); ok {
		if err := e.breakIt(a, name, l.Token(), dlock.Force()); err != nil {
			e.Fatalf("Break: %v", err)
		}
		t = e.grows("a break", t, e.pass(a.Mutex(name)))
	} else {
		e.unlock(l)
	}
	e.close(a)
	e.close(b)
	e.becomes(name, 0, 0)
	pause(e.shortTTL / 4)
	e.grows("all clients left", t, e.pass(e.client().Mutex(name)))
}

func tokensShared(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	ra, rb := a.RWMutex(name), b.RWMutex(name)
	last := dlock.Token(0)
	for range 3 {
		w := e.grows("the readers", last, e.pass(ra.Write()))
		r1, r2 := e.lock(ra.Read()), e.lock(rb.Read())
		last = max(e.grows("the writer", w, r1.Token()), e.grows("the writer", w, r2.Token()))
		e.unlock(r1)
		e.unlock(r2)
	}
	e.grows("the readers", last, e.pass(rb.Write()))
}

func tokensClock(e *env) {
	a, b, name := e.client(), e.client(), e.name()
	t, off := e.pass(a.Mutex(name)), time.Duration(0)
	e.Cleanup(func() { e.h.StepClock(e.T, -off) })
	for _, d := range []time.Duration{-time.Hour, 2 * time.Hour, -time.Hour / 2} {
		e.h.StepClock(e.T, d)
		off += d
		t = e.grows("the clock was stepped", t, e.pass(b.Mutex(name)))
	}
}

func tokensRestart(e *env) {
	a, name := e.client(), e.name()
	t := e.pass(a.Mutex(name))
	for range 2 {
		e.h.Restart(e.T)
		t = e.grows("the restart", t, e.pass(e.client().Mutex(name)))
	}
}

// raise calls Raise with a time limit.
func (d *direct) raise(r driver.Request, t driver.Token) error {
	d.e.Helper()
	b, ok := d.Backend.(driver.Raiser)
	if !ok {
		d.e.Fatalf("Capabilities claim Raises, and the backend is no driver.Raiser")
	}
	return call(d.e, "Raise", func(ctx context.Context) error { return b.Raise(ctx, r, t) })
}

// raised raises the token of a request that holds to well above it, and returns the new one. What
// follows changes nothing: the same call again, one with a smaller token, and one with a token that
// no service can keep.
func (d *direct) raised(r driver.Request, before driver.Token) driver.Token {
	d.e.Helper()
	const by = 1e12 // tokens that follow a clock do not get there by themselves
	t := before + by
	for _, to := range []driver.Token{t, t, before} {
		if err := d.raise(r, to); err != nil {
			d.e.Fatalf("Raise of the token %d to %d: %v", before, to, err)
		}
	}
	d.e.want("Raise to the greatest number", d.raise(r, math.MaxUint64), driver.ErrInvalid)
	return t
}

func raise(e *env) {
	d, b, name := e.direct(), e.client(), e.name()
	r := d.ask(name)
	g := d.get(r)
	hold := []driver.Request{r}
	join := func() {
		if e.caps.Joins {
			j := d.join(r, g.Token)
			d.get(j)
			hold = append(hold, j)
		}
	}
	join()
	t := d.raised(r, g.Token)
	join()
	same := func() {
		e.Helper()
		for _, r := range hold {
			if got := d.get(r).Token; got != t {
				e.Errorf("a hold was raised to the token %d, and one of its requests, sent again, has %d", t, got)
			}
		}
		if !e.caps.Inspect {
			return
		}
		q := e.inspect(name)
		for _, h := range q.Holders() {
			if h.Token != t {
				e.Errorf("a hold was raised to the token %d, and Inspect shows %d", t, h.Token)
			}
		}
	}
	same()
	leave := func() {
		e.Helper()
		for _, r := range hold {
			if err := d.release(r); err != nil {
				e.Fatalf("Release: %v", err)
			}
		}
	}
	if e.caps.Queue {
		w := d.ask(name)
		w.Wait = true
		waiter := d.begin(w)
		e.becomes(name, len(hold), 1)
		e.want("Raise of a request that waits", d.raise(w, 2*t), driver.ErrLost)
		same()
		leave()
		next := d.receive(waiter)
		if next.err != nil {
			e.Fatalf("Acquire: %v", next.err)
		}
		t = e.grows("a raise, at a hand-off,", t, next.Token)
		r, hold = w, []driver.Request{w}
	}
	leave()
	e.want("Raise of a request that was released", d.raise(r, 2*t), driver.ErrLost)
	t = e.grows("a raise, after a release,", t, e.pass(b.Mutex(name)))

	short, g := d.expire(name)
	t = d.raised(short, g.Token)
	l := e.lock(b.Mutex(name))
	t = e.grows("a raise, after an expiry,", t, l.Token())
	e.want("Raise of a request that has expired", d.raise(short, 2*t), driver.ErrLost)
	e.mustBeHeld(e.client().Mutex(name), "a request that has expired was raised, and not this one")
	e.unlock(l)

	if e.caps.Shared {
		r := d.ask(name)
		t = d.raised(r, d.get(r).Token)
		if err := d.release(r); err != nil {
			e.Fatalf("Release: %v", err)
		}
		t = e.grows("a raise, at a reader,", t, e.pass(b.RWMutex(name).Read()))
	}
	if _, ok := e.probe.(driver.Breaker); ok {
		r := d.ask(name)
		g := d.get(r)
		t = d.raised(r, g.Token)
		e.want("Break with the token before a raise", e.breakIt(b, name, g.Token), dlock.ErrNotHeld)
		if err := e.breakIt(b, name, t); err != nil {
			e.Fatalf("Break with the token after a raise: %v", err)
		}
		e.want("Raise of a request that is broken", d.raise(r, 2*t), driver.ErrLost)
		e.want("Release of a request that is broken", d.release(r), driver.ErrLost)
		e.grows("a raise and a break", t, e.pass(b.Mutex(name)))
	}
}
