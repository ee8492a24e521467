package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// ownRequest is a request of this client, with the vote of each master. Backend.mu guards it.
type ownRequest struct {
	r     driver.Request
	votes []vote    // by master
	until time.Time // it cannot have expired before; zero: it was not granted
	ended bool      // refused or released: a grant that arrives now is released
	// when its last Acquire failed other than by a refusal; zero: it did not
	failed time.Time

	brokenAt []int // the masters that reported it as broken
	reported bool  // as lost, because it was broken
}

// vote is the state of a request on one master.
type vote uint8

const (
	absent   vote = iota // it does not stand there
	sent                 // no answer yet
	granted              // it stands there
	unknown              // a copy may stand there or be under way
	released             // it stood there, and a release removed it
)

// Acquire implements [driver.Backend]. It calls all masters at once, and returns when the outcome
// is certain. A grant that arrives after that is released. Redlock has no queue: a request that
// would have to wait gets a [driver.RetryError].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := b.checkName(r.Name); err != nil {
		return driver.Grant{}, err
	}
	if err := kit.CheckTTL(r.TTL, b.caps); err != nil {
		return driver.Grant{}, err
	}
	q, resumed, err := b.register(r)
	if err != nil {
		return driver.Grant{}, err
	}
	if resumed {
		p := b.Renew(ctx, []driver.Request{r})[0]
		if p.Err != nil {
			b.failed(ctx, q, p.Err)
			return driver.Grant{}, p.Err
		}
		return driver.Grant{TTL: p.TTL, SentAt: p.SentAt}, nil
	}
	g, err := b.vote(ctx, q)
	if err != nil {
		b.failed(ctx, q, err)
		return driver.Grant{}, err
	}
	return g, nil
}

// register returns the entry of a request, and whether it was granted before.
func (b *Backend) register(r driver.Request) (q *ownRequest, resumed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.life.Over():
		return nil, false, driver.ErrClosed
	case r.Semaphore():
		return nil, false, fmt.Errorf("%w: %s has no semaphores (%s)", driver.ErrUnsupported, b.layout.locks, b.layout.page)
	}
	q = b.requests[r.ID]
	if q == nil {
		q = &ownRequest{r: r, votes: make([]vote, len(b.masters))}
		for i := range q.votes {
			q.votes[i] = sent
		}
		b.requests[r.ID] = q
		b.listenFor(r.Client)
	}
	q.failed = time.Time{}
	return q, !q.until.IsZero(), nil
}

// vote asks the masters for the request, and counts their votes.
func (b *Backend) vote(ctx context.Context, q *ownRequest) (driver.Grant, error) {
	r, timeout, sentAt := q.r, b.timeout(q.r.TTL), time.Now()
	answers, err := b.broadcast(timeout, func() []*script.Call {
		mode, flags, up := "x", "-", int64((b.o.MinUptime+time.Second-1)/time.Second)
		if r.Mode == driver.Shared {
			mode = "s"
		}
		if r.Fixed {
			flags = "f"
		}
		return []*script.Call{b.call(b.layout.acquire, r.Name, r.ID.String(), r.Owner.String(), mode, flags, millis(r.TTL), r.Client.String(), r.Label, up)}
	}, func(a answer) { b.voted(q, a) })
	if err != nil {
		return driver.Grant{}, err
	}
	yes, held, lost, shared, why, after := 0, 0, 0, 0, b.unanswered(timeout), b.o.RetryDelay
	// A refusal names a holder only if a majority does: rivals may have split the votes.
	named, refusal := map[string]int{}, error(driver.ErrHeld)
	// A request that any master knows as released is lost for good. A join is lost only if no
	// majority is left for it, since its hold need not be on every master.
	gone := func() bool { return lost > 0 && (!r.Join() || b.impossible(lost)) }
	// The masters that have the hold have it as a shared one, and the others are too few.
	upgrade := func() bool { return shared > 0 && b.impossible(lost+shared) }
	out := len(b.masters) // masters that have not answered
	err = collect(ctx, b, out, timeout, answers, func(a answer) bool {
		out--
		state, value, err := parseVote(a.calls[0])
		if state == -2 {
			err = fmt.Errorf("it has been up for only %ds, less than min_uptime (%s)", value, b.o.MinUptime)
		}
		why.record(a.master, b.explain(r.Name, err))
		switch {
		case err != nil:
		case state == 1:
			yes++
		case state == -1:
			if lost++; r.Join() {
				why.record(a.master, errNotThere)
			}
		case state == -3:
			shared++
		default:
			held++
			id, by := parseHeld(a.calls[0])
			if named[id]++; by != nil && named[id] >= b.majority {
				refusal = by
			}
			if value > 0 {
				after = min(after, time.Duration(value)*time.Millisecond)
			}
		}
		// When no majority can grant any more, it is still open whether a majority has answered.
		return yes >= b.majority || gone() || b.impossible(shared) || yes+out < b.majority && yes+held >= b.majority
	})
	switch {
	case err != nil:
		return driver.Grant{}, err
	case gone():
		return driver.Grant{}, driver.ErrLost
	case upgrade():
		return driver.Grant{}, driver.ErrUpgrade
	case yes >= b.majority:
		b.mu.Lock()
		q.until = sentAt.Add(r.TTL)
		b.mu.Unlock()
		return driver.Grant{TTL: r.TTL, SentAt: sentAt}, nil
	case r.Join() || yes+held < b.majority:
		return driver.Grant{}, why
	case r.Wait:
		return driver.Grant{}, &driver.RetryError{After: after}
	}
	return driver.Grant{}, refusal
}

// parseVote reads what lua/acquire.lua returns.
func parseVote(c *script.Call) (state, value int64, err error) {
	if c.Err != nil {
		return 0, 0, c.Err
	}
	l, ok := c.Reply.([]any)
	if !ok || len(l) == 0 {
		return 0, 0, fmt.Errorf("unexpected reply %v", c.Reply)
	}
	state, ok = l[0].(int64)
	if ok && len(l) > 1 {
		value, ok = l[1].(int64)
	}
	if !ok {
		return 0, 0, fmt.Errorf("unexpected reply %v", c.Reply)
	}
	return state, value, nil
}

// parseHeld reads the rest of the reply of lua/acquire.lua for a lock that is held: the ID of the
// holder or the value of a peer, and the error that describes it, or nil.
func parseHeld(c *script.Call) (id string, by error) {
	l, _ := c.Reply.([]any)
	if len(l) == 3 {
		value, _ := l[2].(string)
		return value, &heldByPeer{value}
	}
	if len(l) != 5 {
		return "", nil
	}
	id, _ = l[2].(string)
	label, _ := l[3].(string)
	age, ok := l[4].(int64)
	if !ok {
		return id, nil
	}
	return id, &driver.HeldError{Label: label, Age: time.Duration(age) * time.Millisecond}
}

// voted records the vote of a master. If the request ended meanwhile, a grant is released. mu is
// held.
func (b *Backend) voted(q *ownRequest, a answer) {
	v := absent
	switch state, _, err := parseVote(a.calls[0]); {
	case err == nil && state == 1:
		v = granted
	case err != nil && fault.Unknown(err):
		v = unknown
	}
	if v == absent && q.votes[a.master] != sent {
		return // another copy may stand there
	}
	q.votes[a.master] = v
	if b.lostNow(q) {
		b.life.Go(func() { b.notify(q.r.ID) })
	}
	if q.ended && v != absent {
		b.queueRelease(a.master, q, true, nil)
	}
}

// failed ends an Acquire that failed with err. After a refusal it releases the grants of the
// masters and waits for their answers: they answered before, and so will again. The request may
// stand on other masters, but on no majority. After any other error the request stays until its
// release.
func (b *Backend) failed(ctx context.Context, q *ownRequest, err error) {
	results := make(chan result, len(b.masters))
	n := 0
	b.mu.Lock()
	if !driver.Refused(err) {
		q.failed = time.Now()
		b.mu.Unlock()
		return
	}
	q.ended = true
	delete(b.requests, q.r.ID)
	for i, v := range q.votes {
		switch v {
		case granted:
			b.queueRelease(i, q, false, results)
			n++
		case unknown:
			b.queueRelease(i, q, true, nil)
		}
	}
	b.mu.Unlock()
	_ = collect(ctx, b, n, b.timeout(q.r.TTL), results, func(result) bool { return false })
}
