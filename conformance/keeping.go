package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
)

var keeping = []Law{
	{Name: "unlock-after", run: unlockAfter, stall: tenthOfRenewedTTL,
		Sentence: "UnlockAfter keeps the lock held until its time, also after Close, and not much longer; or it fails with ErrUnsupported and changes nothing"},
	{Name: "once", run: once, stall: tenthOfRenewedTTL,
		Sentence: "OncePer calls its function once in a period, whichever client calls OncePer; or it fails with ErrUnsupported without calling the function"},
}

// keeps reports whether the backend can keep a lock held without its client.
func (e *env) keeps() bool { return e.caps.FixedOutlives }

func unlockAfter(e *env) {
	if !e.keeps() {
		a, b, name := e.client(), e.client(), e.name()
		l := e.lock(a.Mutex(name))
		e.want("UnlockAfter", e.unlockAfter(l, e.renewedTTL), dlock.ErrUnsupported)
		e.mustBeHeld(b.Mutex(name), "UnlockAfter changed nothing")
		e.unlock(l)
		e.becomes(name, 0, 0)
		return
	}
	d := e.bounded(2 * e.renewedTTL)
	for _, closes := range []bool{true, false} {
		a, b, name := e.client(dlock.TTL(e.renewedTTL)), e.client(), e.name()
		l := e.lock(a.Mutex(name))
		pause(e.renewedTTL / 2) // renewals are under way
		next := e.begin(b.Mutex(name))
		sent := time.Now()
		if err := e.unlockAfter(l, d); err != nil {
			e.Fatalf("UnlockAfter: %v", err)
		}
		kept := time.Now()
		e.want("Err after UnlockAfter", l.Err(), dlock.ErrNotHeld)
		e.want("UnlockAfter of a released lease", e.unlockAfter(l, d), dlock.ErrNotHeld)
		if closes {
			e.close(a)
		} else if _, err := e.tryIn(e.ctx, a.Mutex(name)); !errors.Is(err, dlock.ErrHeld) && time.Since(kept) < d/2 {
			e.Errorf("TryLock of the client that kept the lock held: %v", err)
		}
		successor := next.got(e)
		if early := sent.Add(d).Sub(next.at); early > 5*time.Millisecond {
			e.strict().Errorf("closed: %v: the next waiter was granted %s before the time of UnlockAfter", closes, early)
		}
		if late := next.at.Sub(kept.Add(d)); late > e.renewedTTL+2*time.Second {
			e.Errorf("closed: %v: the next waiter was granted %s after the time of UnlockAfter", closes, late)
		}
		if successor.Token() <= l.Token() && e.caps.Fencing {
			e.strict().Errorf("token %d came after %d", successor.Token(), l.Token())
		}
		e.unlock(successor)
		e.becomes(name, 0, 0)
	}
}

func (e *env) unlockAfter(l *dlock.Lease, d time.Duration) error {
	e.Helper()
	return call(e, "UnlockAfter", func(ctx context.Context) error { return l.UnlockAfter(ctx, d) })
}

func once(e *env) {
	period := e.bounded(2 * e.renewedTTL)
	a, b, name := e.client(), e.client(), e.name()
	runs := 0
	try := func(c *dlock.Client) (bool, error) {
		type result struct {
			ran bool
			err error
		}
		r := call(e, "OncePer", func(ctx context.Context) result {
			ran, err := dlock.OncePer(ctx, c.Mutex(name), period, func(context.Context) error {
				runs++
				return nil
			})
			return result{ran, err}
		})
		return r.ran, r.err
	}
	if !e.keeps() {
		ran, err := try(a)
		e.want("OncePer", err, dlock.ErrUnsupported)
		if ran || runs != 0 {
			e.Errorf("OncePer, which is not supported, called its function")
		}
		e.stands(name, 0, 0)
		return
	}
	for round := 1; round <= 2; round++ {
		e.until("it is time to run", func() bool {
			ran, err := try(a)
			if err != nil {
				e.Fatalf("OncePer: %v", err)
			}
			return ran
		})
		done := time.Now()
		e.close(a) // a clean exit of the client
		a = e.client()
		for _, c := range []*dlock.Client{a, b} {
			if ran, err := try(c); ran && time.Since(done) < period/2 || err != nil {
				e.Errorf("OncePer, a second time in a period of %s, after %s: ran %v, %v", period, time.Since(done), ran, err)
			}
		}
		if runs != round && time.Since(done) < period/2 {
			e.Errorf("%d runs in %d periods", runs, round)
		}
	}
	e.becomes(name, 0, 0)
}
