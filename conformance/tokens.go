package conformance

import (
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
