package memory

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// wait is where a waiting Acquire finds its answer. The call that grants or removes the request
// sets the answer, and closes done.
type wait struct {
	done  chan struct{}
	grant driver.Grant
	err   error
}

// await returns the answer to a request that waits.
func (b *Backend) await(ctx context.Context, r driver.Request, w *wait) (driver.Grant, error) {
	select {
	case <-w.done:
		return w.grant, w.err
	case <-ctx.Done():
		return driver.Grant{}, driver.WaitedFor(ctx, b.leave(r))
	}
}

// leave records that the Acquire of a request has ended, and returns the error that names the
// holder it waited for.
func (b *Backend) leave(r driver.Request) error {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	q, e := s.current(b.prefix+r.Name, now), s.requests[r.ID]
	if e != nil {
		e.left = true
	}
	if q == nil || e == nil || e.granted() {
		return driver.ErrHeld
	}
	return s.held(q, now)
}

// held returns the error that names a holder.
func (s *Space) held(q *queue, now time.Time) error {
	holders := q.Arrivals[:q.granted]
	if len(holders) == 0 {
		holders = q.Joins
	}
	if len(holders) == 0 {
		return driver.ErrHeld
	}
	r := s.requests[holders[0].ID]
	return &driver.HeldError{Label: r.Label, Age: now.Sub(r.arrived)}
}

// answer ends the wait for the request, if there is one.
func (r *entry) answer(g driver.Grant, err error) {
	if w := r.wait; w != nil {
		r.wait, w.grant, w.err = nil, g, err
		close(w.done)
	}
}
