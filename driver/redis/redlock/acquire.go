package redlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// ownRequest is a request of this client, and what each master made of it. Backend.mu guards it.
type ownRequest struct {
	r     driver.Request
	votes []vote    // by master
	until time.Time // it cannot have expired before; zero: it was not granted
	ended bool      // refused or released: a grant that comes in now is taken back
	// when its last Acquire failed, other than by a refusal; zero: it did not
	failed time.Time

	brokenAt []int // the masters that said that it was broken
	reported bool  // as lost, since it was broken
}

// vote is what one master made of a request.
type vote uint8

const (
	absent   vote = iota // it does not stand there
	sent                 // no answer yet
	granted              // it stands there
	unknown              // a copy may stand there or be under way
	released             // it stood there, and a release removed it
)

// Acquire implements [driver.Backend]. It asks all masters at once, and returns when the outcome is
// certain. What a master grants after that is taken back. Redlock has no queue: a request that
// would have to wait gets a [driver.RetryError].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
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
	case r.Mode == driver.Shared:
		return nil, false, fmt.Errorf("%w: Redlock has exclusive locks only; see its documentation", driver.ErrUnsupported)
	case r.Join() && !r.Fixed:
		return nil, false, fmt.Errorf("%w: joining a hold on Redlock", driver.ErrUnsupported)
	case r.Join() && b.requests[r.Owner] == nil && b.requests[r.ID] == nil:
		// It was lost or released, or is another client's, for which no client of dlock asks.
		return nil, false, fmt.Errorf("%w: the hold that is joined is none of this client", driver.ErrLost)
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

// vote asks the masters for the request, and counts.
func (b *Backend) vote(ctx context.Context, q *ownRequest) (driver.Grant, error) {
	r, timeout, sentAt := q.r, b.timeout(q.r.TTL), time.Now()
	answers, err := b.broadcast(timeout, func() []*script.Call {
		if r.Join() {
			return []*script.Call{b.call(joinScript, r.Name, r.ID.String(), millis(r.TTL), r.Owner.String())}
		}
		who, up := r.Client.String()+" "+r.Label, int64((b.o.MinUptime+time.Second-1)/time.Second)
		return []*script.Call{b.call(acquireScript, r.Name, r.ID.String(), millis(r.TTL), who, up)}
	}, func(a answer) { b.voted(q, a) })
	if err != nil {
		return driver.Grant{}, err
	}
	yes, held, lost, why, after := 0, 0, 0, b.unanswered(timeout), b.o.RetryDelay
	// A refusal names a holder if a majority does: rivals may have split the votes.
	named, refusal := map[string]int{}, driver.ErrHeld
	// A request that was released is lost for good wherever that is known. A hold need not be
	// everywhere.
	gone := func(r driver.Request, lost int) bool { return lost > 0 && (!r.Join() || b.impossible(lost)) }
	out := len(b.masters) // masters that have not answered
	err = collect(ctx, b, out, timeout, answers, func(a answer) bool {
		out--
		state, value, err := parseVote(a.calls[0])
		if state == -2 {
			err = fmt.Errorf("it has been up for %ds only, and the least is %s", value, b.o.MinUptime)
		}
		why.record(a.master, b.explain(r.Name, err))
		switch {
		case err != nil:
		case state == 1:
			yes++
		case state == -1:
			lost++
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
		return yes >= b.majority || gone(r, lost) || yes+out < b.majority && yes+held >= b.majority
	})
	switch {
	case err != nil:
		return driver.Grant{}, err
	case gone(r, lost):
		return driver.Grant{}, driver.ErrLost
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

// parseHeld reads the rest of what lua/acquire.lua returns of what is held: the ID of the holder,
// and what is to be said of it, or nil.
func parseHeld(c *script.Call) (id string, by *driver.HeldError) {
	l, _ := c.Reply.([]any)
	if len(l) != 5 {
		return "", nil
	}
	id, _ = l[2].(string)
	who, _ := l[3].(string)
	ms, _ := l[4].(string)
	age, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return id, nil
	}
	_, label, _ := strings.Cut(who, " ")
	return id, &driver.HeldError{Label: label, Age: time.Duration(age) * time.Millisecond}
}

// voted records what a master made of the request. If the request ended meanwhile, a grant is taken
// back. mu is held.
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

// failed ends an Acquire that failed with err. After a refusal it takes back what masters granted,
// and waits for those: they answered, and so will answer again. What else may stand, no majority
// has. After any other error the request stays until its release.
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
