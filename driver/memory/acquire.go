package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if r.TTL < minTTL {
		return driver.Grant{}, fmt.Errorf("%w TTL of %s; the least is %s", driver.ErrInvalid, r.TTL, minTTL)
	}
	grant, w, err := b.enqueue(r)
	if w == nil {
		return grant, err
	}
	return b.await(ctx, r, w)
}

// enqueue adds or resumes a request. It returns the grant, or the reason why there is none, or the
// wait for the answer.
func (b *Backend) enqueue(r driver.Request) (driver.Grant, *wait, error) {
	s := b.begin()
	if s == nil {
		return driver.Grant{}, nil, driver.ErrClosed
	}
	defer s.mu.Unlock()
	r.Name = b.prefix + r.Name
	now := time.Now()
	q := s.current(r.Name, now)
	if q == nil {
		q = &queue{name: r.Name}
	}
	e := s.requests[r.ID]
	switch {
	case e == nil && s.tombstones.has(r.ID, now):
		return driver.Grant{}, nil, driver.ErrLost
	case e == nil:
		admitted, err := q.Admit(r)
		if err != nil {
			return driver.Grant{}, nil, err
		}
		e = &entry{Entry: driver.Entry{Request: admitted}, client: b, arrived: now}
		s.add(q, e, now)
	case e.Name != r.Name:
		return driver.Grant{}, nil, fmt.Errorf("%w request: its ID is in use for another name", driver.ErrInvalid)
	case e.Broken: // it stays in the queue until its release
		return driver.Grant{}, nil, driver.Unsettled(driver.ErrLost)
	case e.granted():
		q.renew(e, r.TTL, now)
		s.setTimer(q, now)
	}
	e.left = false
	switch {
	case e.granted():
		return driver.Grant{Token: e.Token, TTL: e.TTL, SentAt: now}, nil, nil
	case !r.Wait:
		s.remove(q, e, driver.ErrLost)
		s.evaluate(q, now)
		return driver.Grant{}, nil, s.held(q, now)
	case e.wait == nil:
		e.wait = &wait{done: make(chan struct{})}
	}
	return driver.Grant{}, e.wait, nil
}
