package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var leases = []Law{
	{Name: "renewed", run: renewed, stall: tenthOfRenewedTTL,
		Sentence: "a lease is kept for longer than its TTL, until it is released"},
	{Name: "not-renewed", run: notRenewed, stall: tenthOfRenewedTTL,
		Sentence: "a hold that is not renewed ends on time, although other holds of its client are renewed"},
	{Name: "outage", run: outage, stall: tenthOfRenewedTTL,
		Sentence: "if the connection is back before the TTL has passed, the lease is kept: an unknown outcome is not a loss"},
	{Name: "fixed", run: fixed, stall: tenthOfShortTTL,
		Sentence: "a fixed lease ends on time, and not before: its holder is notified, then the next waiter is granted the lock, even if the holder's client is cut off (where Capabilities say ServerEndsFixed)"},
	{Name: "fixed-close", run: fixedClose, stall: tenthOfRenewedTTL,
		Sentence: "a fixed lease outlives the Close of its client until its time where Capabilities say FixedOutlives; otherwise Close releases it"},
	{Name: "fixed-queued", run: fixedQueued, stall: tenthOfRenewedTTL, needs: []need{queueing},
		Sentence: "a fixed lease that was granted to a waiter ends on time too after the Close of its client, and not before where Capabilities say FixedOutlives"},
	{Name: "ttl-bounds", run: ttlBounds, stall: tenthOfShortTTL,
		Sentence: "a TTL that Capabilities allow is granted in full; any other fails with ErrInvalid and leaves nothing behind: no TTL is shortened silently"},
	{Name: "expired-powerless", run: expiredPowerless,
		Sentence: "an expired request can neither be renewed nor resumed, and its release does not affect its successor"},
	{Name: "expired-resume", run: expiredResume, stall: tenthOfShortTTL,
		Sentence: "an expired request that is sent again fails with ErrLost and adds nothing to the queue, also if the name is free or was used meanwhile"},
	{Name: "renew-never-acquires", run: renewNeverAcquires,
		Sentence: "a renewal never revives a request that expired or was released, not even if the name is free or was used meanwhile"},
	{Name: "trust-within-ttl", run: trustWithinTTL, needs: []need{inspecting},
		Sentence: "the end that a grant or a renewal promises (SentAt + TTL) is not later than the service's own"},
	{Name: "proof-before", run: proofBefore, stall: besideLateReplies, needs: []need{delayingOrBusy}, alone: true,
		Sentence: "the time that a grant or a renewal promises counts from before the call was sent (SentAt), however late its reply comes"},
	{Name: "loss-first", run: lossFirst, stall: inMargin,
		Sentence: "a holder that is cut off is notified of the loss before a successor can be granted the lock"},
	{Name: "after-loss", run: afterLoss, stall: tenthOfRenewedTTL, needs: []need{inspecting},
		Sentence: "when the connection is back, nothing of a lost lease is left, and the next lease of that name is renewed as usual"},
	{Name: "late-grant", run: lateGrant, stall: tenthOfShortTTL, needs: []need{inspecting},
		Sentence: "a client does not accept a grant that arrives after its time"},
	{Name: "unlock-cut-off", run: unlockCutOff,
		Sentence: "an Unlock that got no reply is completed when the connection is back, long before the TTL, and does not affect a successor"},
}

func renewed(e *env) {
	a, b, name := e.client(dlock.TTL(e.renewedTTL)), e.client(), e.name()
	l := e.lock(a.Mutex(name))
	ctx := l.Context(e.ctx)
	for end := time.Now().Add(3 * e.renewedTTL / 2); time.Now().Before(end); pause(e.renewedTTL / 10) {
		e.mustBeHeld(b.Mutex(name), "its lease renews itself", l)
		if err := l.Err(); err != nil {
			e.Fatalf("the lease was not kept: %v", err)
		}
	}
	if ctx.Err() != nil {
		e.Errorf("the lease's context ended: %v", context.Cause(ctx))
	}
	e.unlock(l)
	e.unlock(e.lock(b.Mutex(name)))
}

// notRenewed calls the driver directly: the portable layer renews all its holds.
func notRenewed(e *env) {
	d, b := e.direct(), e.client()
	kept, left := d.ask(e.name()), d.ask(e.name())
	kept.TTL, left.TTL = e.renewedTTL, e.renewedTTL
	d.get(kept)
	g := d.get(left)
	grantedAt, ttl := time.Now(), max(g.TTL, left.TTL)
	next := e.begin(b.Mutex(left.Name))
	for next.pending() && time.Since(grantedAt) < ttl+2*time.Second {
		if p := d.renew(kept); p.Err != nil {
			e.Fatalf("Renew: %v", p.Err)
		}
		pause(e.renewedTTL / 10)
	}
	if next.pending() {
		e.Fatalf("a hold with a TTL of %s, which is not renewed, has not ended after %s", ttl, time.Since(grantedAt))
	}
	e.unlock(next.got(e))
	granted := left.TTL
	if g.TTL > 0 { // a service that stalled may have granted less
		granted = min(granted, g.TTL)
	}
	if early := g.SentAt.Add(granted).Sub(next.at); early > 5*time.Millisecond {
		e.strict().Errorf("a hold with a TTL of %s ended %s too early", granted, early)
	}
	d.isLost("the hold that was not renewed", left)
	if err := d.release(kept); err != nil {
		e.Fatalf("Release: %v", err)
	}
}

func outage(e *env) {
	ttl := e.bounded(5 * e.renewedTTL) // long enough for a renewal in the rest of it
	p, b, name := e.peer(dlock.TTL(ttl)), e.client(), e.name()
	start := time.Now()
	l := e.lock(p.Mutex(name))
	ttl = min(ttl, l.Until().Sub(start)) // what the service really granted
	start = time.Now()
	heal := p.partition()
	pause(ttl * 3 / 4) // a renewal has failed by now, and another is under way
	heal()
	for time.Since(start) < ttl*6/5 {
		if err := l.Err(); err != nil {
			e.Fatalf("cut off for %s of a TTL of %s: %v", ttl*3/4, ttl, err)
		}
		pause(ttl / 20)
	}
	e.mustBeHeld(b.Mutex(name), "its lease outlived the outage", l)
	e.unlock(l)
}

func fixed(e *env) {
	p, b, name := e.peer(), e.client(), e.name()
	l := e.lock(p.Mutex(name, dlock.FixedLease(e.shortTTL)))
	ctx := l.Context(e.ctx)
	next := e.begin(b.Mutex(name))

	sent, lives := time.Now(), e.name()
	e.lock(e.client().Mutex(lives, dlock.FixedLease(e.shortTTL)))
	after := e.begin(b.Mutex(lives))

	if e.caps.ServerEndsFixed {
		p.partition()
	}
	e.unlock(after.got(e))
	if early := sent.Add(e.shortTTL).Sub(after.at); early > 5*time.Millisecond {
		e.strict().Errorf("the next waiter was granted %s before the end of a fixed lease whose client is alive", early)
	}
	successor := next.got(e)
	if next.at.Before(l.Until()) {
		e.strict().Errorf("the next waiter was granted %s before the end of the lease", l.Until().Sub(next.at))
	}
	if late := next.at.Sub(l.Until()); late > e.shortTTL+2*time.Second {
		e.Errorf("the next waiter was granted %s after the end of the lease", late)
	}
	e.want("Err of the lease", l.Err(), dlock.ErrLost)
	e.until("its context ended", func() bool { return ctx.Err() != nil })
	e.want("its context's cause", context.Cause(ctx), dlock.ErrLost)
	e.want("its Unlock", e.unlockErr(l), dlock.ErrLost)
	e.mustBeHeld(b.Mutex(name), "the successor holds it")
	e.unlock(successor)
}

func fixedClose(e *env) {
	ttl := e.longTTL
	if e.caps.FixedOutlives {
		ttl = e.bounded(2 * e.renewedTTL)
	}
	a, d, b := e.client(), e.direct(), e.client()
	// requests that the portable layer does not know are left or removed by the driver
	through, alone := e.name(), e.name()
	sent := time.Now()
	l := e.lock(a.Mutex(through, dlock.FixedLease(ttl)))
	r := d.ask(alone)
	r.TTL, r.Fixed = ttl, true
	d.get(r)
	granted := time.Now()
	e.close(a)
	e.close(d)
	e.want("Err after Close", l.Err(), dlock.ErrClosed)
	for _, name := range []string{through, alone} {
		next := e.begin(b.Mutex(name))
		successor := next.got(e)
		if early := sent.Add(ttl).Sub(next.at); e.caps.FixedOutlives && early > 5*time.Millisecond {
			e.strict().Errorf("Capabilities claim FixedOutlives, and after Close the next waiter was granted %s before the end of a fixed lease", early)
		}
		if late := next.at.Sub(granted.Add(ttl)); e.caps.FixedOutlives && late > e.renewedTTL+2*time.Second {
			e.Errorf("the next waiter was granted %s after the end of a fixed lease whose client was closed", late)
		}
		e.unlock(successor)
	}
}

func fixedQueued(e *env) {
	a, b, c, name := e.client(), e.client(), e.client(), e.name()
	ttl := e.bounded(e.renewedTTL)
	held := e.lock(a.Mutex(name))
	next := e.begin(b.Mutex(name, dlock.FixedLease(ttl)))
	e.becomes(name, 1, 1)
	sent := time.Now()
	e.unlock(held)
	l := next.got(e)
	granted := time.Now()
	e.close(b)
	e.want("Err after Close", l.Err(), dlock.ErrClosed)
	successor := e.lock(c.Mutex(name))
	now := time.Now()
	if early := sent.Add(ttl).Sub(now); e.caps.FixedOutlives && early > 5*time.Millisecond {
		e.strict().Errorf("Capabilities claim FixedOutlives, and after Close the next waiter was granted %s before the end of a fixed lease", early)
	}
	if late := now.Sub(granted.Add(ttl)); late > e.renewedTTL+2*time.Second {
		e.Errorf("the next waiter was granted %s after the end of a fixed lease of %s whose client was closed", late, ttl)
	}
	e.unlock(successor)
}

func ttlBounds(e *env) {
	const most = 24 * time.Hour // the greatest of package dlock
	d, name := e.direct(), e.name()
	for _, fixed := range []bool{false, true} {
		greatest := e.caps.MaxTTL
		if fixed {
			greatest = max(greatest, e.caps.MaxFixed)
		}
		kept := []time.Duration{max(e.caps.MinTTL, e.shortTTL), greatest}
		var refused []time.Duration
		if greatest == 0 {
			kept[1] = most
		} else {
			refused = append(refused, greatest+time.Second, 2*greatest)
		}
		if e.caps.MinTTL > 0 {
			refused = append(refused, e.caps.MinTTL/2, 0)
		}
		for _, ttl := range kept {
			r := d.ask(name)
			r.TTL, r.Fixed = ttl, fixed
			sent := time.Now()
			g := d.get(r)
			if g.TTL < ttl || sent.Sub(g.SentAt) > ttl/2 {
				e.Errorf("of a TTL of %s (fixed: %v), which Capabilities allow, %s were granted, counted from %s before the call", ttl, fixed, g.TTL, sent.Sub(g.SentAt))
			}
			if err := d.release(r); err != nil && !(errors.Is(err, driver.ErrLost) && time.Since(sent) > ttl) {
				e.Fatalf("Release: %v", err)
			}
			e.becomes(name, 0, 0)
		}
		for _, ttl := range refused {
			r := d.ask(name)
			r.TTL, r.Fixed = ttl, fixed
			if _, err := d.acquire(r); !errors.Is(err, driver.ErrInvalid) {
				e.strict().Errorf("Acquire with a TTL of %s (fixed: %v), which Capabilities do not allow, returned %v; want ErrInvalid", ttl, fixed, err)
			}
			e.stands(name, 0, 0)
		}
	}
}

// expire acquires a request that is never renewed, so that it expires.
func (d *direct) expire(name string) (driver.Request, driver.Grant) {
	d.e.Helper()
	const most = 5
	for i := 1; ; i++ {
		r := d.ask(name)
		r.TTL = d.e.shortTTL
		start := time.Now()
		g, err := d.acquire(r)
		if err == nil {
			return r, g
		}
		// a service that stalls does not answer in time
		if took := time.Since(start); i == most || took < r.TTL/10 {
			d.e.Fatalf("Acquire: %v", err)
		}
	}
}

func expiredPowerless(e *env) {
	a, b, name := e.direct(), e.direct(), e.name()
	r, _ := a.expire(name)
	next, g := b.take(name)
	a.isLost("an expired request", r)
	if err := known(func() error { return a.release(r) }); err == nil {
		e.Errorf("Release of an expired request returned nil")
	} else {
		e.want("Release of an expired request", err, driver.ErrLost)
	}
	r.TTL = e.longTTL
	if _, err := a.acquire(r); err == nil {
		e.Errorf("an expired request was granted again while its successor holds")
	}
	if p := b.renew(next); p.Err != nil {
		e.Fatalf("the successor's Renew: %v", p.Err)
	}
	if again := b.get(next); again.Token != g.Token {
		e.Errorf("the successor's token was %d and is %d", g.Token, again.Token)
	}
	if err := b.release(next); err != nil {
		e.Fatalf("the successor's Release: %v", err)
	}
}

// take acquires the lock, waiting for it; if the driver cannot queue, it tries again.
func (d *direct) take(name string) (driver.Request, driver.Grant) {
	d.e.Helper()
	r := d.ask(name)
	if d.e.caps.Queue {
		r.Wait = true
		res := d.receive(d.begin(r))
		if res.err != nil {
			d.e.Fatalf("Acquire: %v", res.err)
		}
		return r, res.Grant
	}
	var g driver.Grant
	d.e.until("the lock is free", func() bool {
		var err error
		r = d.ask(name)
		g, err = d.acquire(r)
		return err == nil
	})
	return r, g
}

// expiredResume sends the request again before the client was notified of the loss: only the
// driver's memory of the grant shows that this is not the first copy.
func expiredResume(e *env) {
	a, b := e.direct(), e.direct()
	for _, used := range []bool{true, false} {
		name := e.name()
		r, g := a.expire(name)
		if used {
			next, _ := b.take(name)
			if err := b.release(next); err != nil {
				e.Fatalf("Release: %v", err)
			}
		} else {
			pause(max(g.TTL, r.TTL)*11/10 + 10*time.Millisecond)
		}
		if _, err := a.acquire(r); !errors.Is(err, driver.ErrLost) {
			e.Errorf("an expired request that is sent again (the name was used meanwhile: %v) returned %v; want ErrLost", used, err)
		}
		e.stands(name, 0, 0)
	}
}

func renewNeverAcquires(e *env) {
	a, b, unseen := e.direct(), e.direct(), e.name()
	old, g := a.expire(unseen)
	over := time.Now().Add(max(g.TTL, e.shortTTL) * 3 / 2)
	for _, used := range []bool{false, true} {
		name := e.name()
		r, _ := a.expire(name)
		if used {
			next, _ := b.take(name)
			if err := b.release(next); err != nil {
				e.Fatalf("Release: %v", err)
			}
		} else {
			pause(e.shortTTL + e.shortTTL/10 + 10*time.Millisecond)
			e.becomes(name, 0, 0)
		}
		a.isLost("an expired request", r)
		e.stands(name, 0, 0)
		next := b.ask(name)
		b.get(next)
		if err := b.release(next); err != nil {
			e.Fatalf("Release: %v", err)
		}
		b.isLost("a request that was released", next)
		e.stands(name, 0, 0)
	}
	// the name is not used meanwhile, so no call has detected that the request has expired
	pause(time.Until(over))
	a.isLost("a request that had expired, and whose name was not used since", old)
	e.stands(unseen, 0, 0)
}

func trustWithinTTL(e *env) {
	a, b, name := e.direct(), e.direct(), e.name()
	// bounded fails the law if the promise outlasts the remaining time that the service shows.
	// Rounding may add a little. A grant may rest on an older proof, as that of a lease which
	// several requests share, while half of its time is left; a renewal is a new proof.
	bounded := func(what string, r driver.Request, sent, since time.Time, ttl time.Duration) {
		e.Helper()
		for _, h := range e.inspect(name).Holders() {
			if over := since.Add(ttl).Sub(time.Now().Add(h.Left)); h.ID == r.ID && over > 5*time.Millisecond {
				e.Errorf("the promise of %s outlasts the service's by %s", what, over)
			}
		}
		if old := sent.Sub(since); ttl <= 0 || old > 0 && (what == "a renewal" || old > ttl/2) {
			e.Errorf("%s reports a TTL of %s since %s before the call", what, ttl, sent.Sub(since))
		}
	}
	r := a.ask(name)
	sent := time.Now()
	g := a.get(r)
	bounded("a grant", r, sent, g.SentAt, g.TTL)
	pause(e.shortTTL / 4)
	sent = time.Now()
	p := a.renew(r)
	if p.Err != nil {
		e.Fatalf("Renew: %v", p.Err)
	}
	bounded("a renewal", r, sent, p.SentAt, p.TTL)
	sent = time.Now()
	g = a.get(r)
	bounded("a grant sent again", r, sent, g.SentAt, g.TTL)
	if e.caps.Queue {
		next := b.ask(name)
		next.Wait = true
		sent = time.Now()
		done := b.begin(next)
		e.becomes(name, 1, 1)
		pause(e.shortTTL / 4)
		if err := a.release(r); err != nil {
			e.Fatalf("Release: %v", err)
		}
		res := b.receive(done)
		if res.err != nil {
			e.Fatalf("Acquire: %v", res.err)
		}
		bounded("a grant after a wait", next, sent, res.SentAt, res.TTL)
		a, r = b, next
	}
	if err := a.release(r); err != nil {
		e.Fatalf("Release: %v", err)
	}
}

// late is the delay of each reply in proof-before.
const late = 100 * time.Millisecond

// besideLateReplies is half of the time that the late replies leave for an answer: a stall need not
// fall into one call as a whole.
func besideLateReplies(e *env) time.Duration {
	return max((tenthOfRenewedTTL(e)-late)/2, minStall)
}

func proofBefore(e *env) {
	if e.h.DelayReplies == nil {
		proofBeforeBusy(e)
		return
	}
	d, other, name := e.direct(), e.direct(), e.name()
	ask := func() driver.Request {
		r := d.ask(name)
		r.TTL = e.renewedTTL
		return r
	}
	give := func(c *direct, r driver.Request) {
		e.Helper()
		if err := c.release(r); err != nil {
			e.Fatalf("Release: %v", err)
		}
	}
	before := func(what string, since time.Time) {
		e.Helper()
		if after := time.Until(since.Add(late)); after > 0 {
			e.strict().Errorf("%s, whose reply took at least %s, counts from %s after the call", what, late, after)
		}
	}
	r := ask() // the name and the TTL are in use from now on
	d.get(r)
	give(d, r)
	e.h.DelayReplies(e.T, d.Backend, late)
	defer e.h.DelayReplies(e.T, d.Backend, 0)
	r = ask()
	before("a grant", d.get(r).SentAt)
	before("a grant sent again", d.get(r).SentAt)
	p := d.renew(r)
	if p.Err != nil {
		e.Fatalf("Renew: %v", p.Err)
	}
	before("a renewal", p.SentAt)
	give(d, r)
	r = ask()
	r.TTL = e.bounded(2 * e.renewedTTL)
	before("a grant with a TTL that is new to the client", d.get(r).SentAt)
	give(d, r)
	if !e.caps.Queue {
		return
	}
	for _, holder := range []*direct{other, d} { // another client, and the same
		held, next := holder.ask(name), ask()
		holder.get(held)
		next.Wait = true
		done := d.begin(next)
		e.becomes(name, 1, 1)
		give(holder, held)
		g := d.receive(done)
		if g.err != nil {
			e.Fatalf("Acquire: %v", g.err)
		}
		before("a grant after a wait", g.SentAt)
		give(d, next)
	}
}

func lossFirst(e *env) {
	const rounds = 3 // a loaded machine may be late at times, without a stall
	b, knew := e.client(), 0
	for range rounds {
		p, name := e.peer(dlock.TTL(e.renewedTTL)), e.name()
		l := e.lock(p.Mutex(name))
		ctx := l.Context(e.ctx)
		p.partition()
		next := e.begin(b.Mutex(name))
		successor := next.got(e)
		if ctx.Err() != nil {
			knew++
		}
		if !l.Until().Before(next.at) {
			e.strict().Errorf("the lease was trusted until %s after its successor was granted", l.Until().Sub(next.at))
		}
		e.strict().want("Err of a lease whose successor holds", l.Err(), dlock.ErrLost)
		e.strict().until("its context ended", func() bool { return ctx.Err() != nil })
		e.strict().want("its context's cause", context.Cause(ctx), dlock.ErrLost)
		e.strict().until("Lost is closed", func() bool {
			select {
			case <-l.Lost():
				return true
			default:
				return false
			}
		})
		e.unlock(successor)
	}
	if knew == 0 {
		e.Errorf("in no round had the context ended when the successor was granted")
	}
}

func afterLoss(e *env) {
	p, b, name := e.peer(dlock.TTL(e.renewedTTL)), e.client(), e.name()
	old := e.lock(p.Mutex(name))
	heal := p.holdReplies() // renewals are executed, but the client does not know
	e.until("the lease is lost", func() bool { return old.Err() != nil })
	heal()
	l := e.lock(p.Mutex(name))
	e.becomes(name, 1, 0)
	for end := time.Now().Add(6 * e.renewedTTL / 5); time.Now().Before(end); pause(e.renewedTTL / 10) {
		if err := l.Err(); err != nil {
			e.Fatalf("the next lease was not renewed: %v", err)
		}
		e.stands(name, 1, 0)
	}
	e.mustBeHeld(b.Mutex(name), "the next lease is renewed", l)
	e.want("Unlock of the lost lease", e.unlockErr(old), dlock.ErrLost)
	e.stands(name, 1, 0)
	e.unlock(l)
	e.becomes(name, 0, 0)
}

func lateGrant(e *env) {
	p, b, name := e.peer(dlock.TTL(e.shortTTL)), e.client(), e.name()
	e.unlock(e.lock(p.Mutex(name))) // the connection to the server of this name is open
	heal := p.holdReplies()
	late := e.begin(p.Mutex(name))
	e.becomes(name, 1, 0) // it holds, and its client does not know
	next := e.begin(b.Mutex(name))
	successor := next.got(e)
	heal()
	e.strict().stays("the late request is not granted while its successor holds", func() bool { return late.pending() || late.err != nil })
	e.mustBeHeld(b.Mutex(name), "the successor holds it")
	e.unlock(successor)
	late.cancel()
	if late.wait(e) == nil {
		e.unlockErr(late.lease)
	}
	e.becomes(name, 0, 0)
}

func unlockCutOff(e *env) {
	p, b := e.peer(), e.client()
	for _, spoil := range []func() func(){p.partition, p.holdReplies} {
		name := e.name()
		l := e.lock(p.Mutex(name))
		heal := spoil()
		ctx, cancel := context.WithTimeout(e.ctx, 30*time.Millisecond)
		err := call(e, "Unlock", func(context.Context) error { return l.Unlock(ctx) })
		cancel()
		if err == nil {
			e.Errorf("Unlock without a reply returned nil")
		}
		heal()
		next := e.lock(b.Mutex(name))
		e.stays("the successor holds", func() bool {
			_, err := e.tryIn(e.ctx, b.Mutex(name))
			return err != nil
		})
		e.unlock(next)
	}
	if e.h.Partition == nil || e.h.HoldReplies == nil { // a real network would need luck
		name := e.name()
		l := e.lock(p.Mutex(name))
		p.injector.DropReply()
		if err := e.unlockErr(l); err == nil {
			e.Errorf("Unlock whose reply was dropped returned nil")
		}
		next := e.lock(b.Mutex(name))
		e.stays("the successor holds", func() bool {
			_, err := e.tryIn(e.ctx, b.Mutex(name))
			return err != nil
		})
		e.unlock(next)
	}
}
