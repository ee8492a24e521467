package pair

import (
	"context"
	"fmt"

	"github.com/dlock-go/dlock/driver"
)

// token returns the token of a hold that has those tokens at the two sides.
func (p *Backend) token(r *driver.Request, first, second driver.Token) driver.Token {
	ts := [2]driver.Token{first, second}
	old := p.sides[p.old].Caps
	switch {
	case r.Mode == driver.Exclusive && old.Raises:
		return max(first, second)
	case r.Mode == driver.Shared && p.raise && !r.Semaphore():
		return min(first, second)
	case p.raise: // a permit: the same for all clients, whichever side is the old one for them
		return first
	case old.Fencing:
		return ts[p.old]
	}
	return ts[1-p.old]
}

// level raises the side whose token of this hold is smaller than the hold's.
func (p *Backend) level(ctx context.Context, q *record) error {
	p.mu.Lock()
	parts := q.parts
	p.mu.Unlock()
	if q.r.Join() || q.r.Mode != driver.Exclusive {
		return nil
	}
	t := p.token(&q.r, parts[0].token, parts[1].token)
	for i, s := range p.sides {
		b, ok := s.Backend.(driver.Raiser)
		if !ok || !s.Caps.Raises || parts[i].token >= t {
			continue
		}
		if err := b.Raise(ctx, parts[i].r, t); err != nil {
			return fmt.Errorf("raise the token of %s: %w", s.Caps.Backend, err)
		}
		p.mu.Lock()
		q.parts[i].token = t
		p.mu.Unlock()
	}
	return nil
}

// findOwner finds what the sides call a hold of another client, which the request joins. Its token
// is that of only one of them, and at a side without a queue an attempt has an ID of its own.
func (p *Backend) findOwner(ctx context.Context, q *record) error {
	p.mu.Lock()
	known := !q.r.Join() || p.requests[q.r.Owner] != nil || q.parts[0].sent
	p.mu.Unlock()
	if known || !p.caps.Joins || !p.caps.Inspect {
		return nil
	}
	var owners [2]*driver.Entry
	var errs [2]error
	p.each(func(i int, b driver.Backend) {
		var queue driver.Queue
		if queue, errs[i] = b.Inspect(ctx, q.r.Name); errs[i] != nil {
			return
		}
		for _, e := range queue.Holders() {
			if !e.Foreign && matches(e.Owner, q.r.Owner) {
				owners[i] = e
			}
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range owners {
		if errs[i] != nil {
			return errs[i]
		}
		q.parts[i].r.Token = 0
		if e != nil {
			q.parts[i].r.Owner, q.parts[i].r.Token = e.Owner, e.Token
		}
	}
	return nil
}
