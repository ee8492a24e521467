package pair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Acquire implements [driver.Backend].
func (p *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	q, err := p.begin(r)
	if err != nil {
		return driver.Grant{}, err
	}
	defer p.done(q)
	if err := p.findOwner(ctx, q); err != nil {
		p.forget(q)
		return driver.Grant{}, err
	}
	if err := p.first(ctx, q, r); err != nil {
		if driver.Refused(err) {
			p.forget(q)
		}
		return driver.Grant{}, err
	}
	if err := p.second(ctx, q, r); err != nil {
		return driver.Grant{}, p.refused(ctx, q, err)
	}
	g, err := p.grant(ctx, q)
	if err != nil {
		return driver.Grant{}, driver.Unsettled(err)
	}
	return g, nil
}

// send sends the request to a side, and records the answer.
func (p *Backend) send(ctx context.Context, q *record, side int, wait bool) error {
	p.mu.Lock()
	if p.closed { // Close has released what was sent
		p.mu.Unlock()
		return driver.ErrClosed
	}
	a := &q.parts[side]
	a.sent = true
	r := a.r
	p.mu.Unlock()
	r.Wait = wait
	g, err := p.sides[side].Backend.Acquire(ctx, r)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		if g.TTL == 0 {
			g.TTL = r.TTL
		}
		a.granted, a.g, a.token = true, g, g.Token
	case driver.Refused(err) && q.copies == 1:
		a.sent = false
	}
	return err
}

// first acquires the request at the first side.
func (p *Backend) first(ctx context.Context, q *record, r driver.Request) error {
	return p.send(ctx, q, 0, r.Wait)
}

// second acquires the request, which the first has granted, at the second side. It stays parked at
// the first meanwhile.
func (p *Backend) second(ctx context.Context, q *record, r driver.Request) error {
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p.park(q, stop)
	defer p.unpark(q)
	if err := p.checkApart(waiting, q); err != nil {
		if why := context.Cause(waiting); ctx.Err() == nil && why != nil {
			return driver.Unsettled(why)
		}
		return err
	}
	if !p.sides[1].Caps.Queue { // the attempts of two copies would be two requests there
		select {
		case q.turn <- struct{}{}:
			defer func() { <-q.turn }()
		case <-waiting.Done():
			return p.ended(ctx, waiting)
		}
	}
	for {
		err := p.send(waiting, q, 1, r.Wait)
		if err == nil {
			return nil
		}
		retry := (*driver.RetryError)(nil)
		if r.Wait && errors.As(err, &retry) {
			p.rename(q)
			if pause(waiting, retry.After) == nil {
				continue
			}
			return p.ended(ctx, waiting)
		}
		if why := context.Cause(waiting); ctx.Err() == nil && why != nil {
			return driver.Unsettled(why)
		}
		return err
	}
}

// ended returns the error of a wait at a second without a queue: the caller's context has ended, or
// the pair has ended the wait.
func (p *Backend) ended(ctx, waiting context.Context) error {
	if ctx.Err() != nil {
		return driver.Waited(ctx)
	}
	return driver.Unsettled(context.Cause(waiting))
}

// checkApart fails, once, if the second side shows a request that was sent to the first only: then
// they are one place under two URLs, where a request would count as granted by both.
func (p *Backend) checkApart(ctx context.Context, q *record) error {
	second := p.sides[1]
	if p.apart.Load() || p.sides[0].Family != second.Family || !second.Caps.Inspect {
		return nil
	}
	queue, err := second.Backend.Inspect(ctx, q.r.Name)
	if err != nil {
		return err
	}
	for _, e := range slices.Concat(queue.Arrivals, queue.Joins) {
		if e.ID != q.r.ID {
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if q.copies == 1 && !q.parts[1].sent { // else this client has sent it there
			return fmt.Errorf("%w: the new and the old backend are the same: both URLs lead to the same locks", driver.ErrInvalid)
		}
		return nil
	}
	p.apart.Store(true)
	return nil
}

// pause waits for d, more or less by up to half of it, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	d = max(d, time.Millisecond)
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refused is called for a request that the first has granted and that failed at the second. It
// returns the error of Acquire. After a refusal it releases the request at the first.
func (p *Backend) refused(ctx context.Context, q *record, err error) error {
	if !driver.Refused(err) {
		return err
	}
	p.mu.Lock()
	r, alone := q.parts[0].r, q.copies == 1
	p.mu.Unlock()
	if !alone {
		return driver.Unsettled(err)
	}
	if e := p.sides[0].Backend.Release(ctx, r); e != nil && !errors.Is(e, driver.ErrLost) {
		return driver.Unsettled(err)
	}
	p.forget(q)
	return err
}

// grant returns the grant of a request that both sides have granted. If it waited at the second, it
// is proved at the first again, so that its time is whole.
func (p *Backend) grant(ctx context.Context, q *record) (driver.Grant, error) {
	p.mu.Lock()
	first := q.parts[0]
	p.mu.Unlock()
	if time.Since(first.g.SentAt) > first.g.TTL/10 {
		n := p.sides[0].Backend.Renew(ctx, []driver.Request{first.r})[0]
		if n.Err != nil {
			return driver.Grant{}, n.Err
		}
		p.proved(q, 0, n)
	}
	if err := p.level(ctx, q); err != nil {
		return driver.Grant{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.parts[0].lost || q.parts[1].lost {
		return driver.Grant{}, driver.ErrLost
	}
	ttl, sentAt := earlier(q.parts[0].g, q.parts[1].g)
	return driver.Grant{Token: p.token(&q.r, q.parts[0].token, q.parts[1].token), TTL: ttl, SentAt: sentAt}, nil
}

// earlier returns the proof that two proofs make: it begins with the earlier call, and ends when
// the first of the two does.
func earlier(a, b driver.Grant) (ttl time.Duration, sentAt time.Time) {
	sentAt, end := a.SentAt, a.SentAt.Add(a.TTL)
	if b.SentAt.Before(sentAt) {
		sentAt = b.SentAt
	}
	if e := b.SentAt.Add(b.TTL); e.Before(end) {
		end = e
	}
	return end.Sub(sentAt), sentAt
}

// proved records a renewal at one side.
func (p *Backend) proved(q *record, side int, n driver.Renewal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &q.parts[side]
	if n.TTL == 0 {
		n.TTL = a.r.TTL
	}
	if n.SentAt.After(a.g.SentAt) {
		a.g.TTL, a.g.SentAt = n.TTL, n.SentAt
	}
}
