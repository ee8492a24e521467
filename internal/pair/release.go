package pair

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock/driver"
)

// Release implements [driver.Backend]. It is sent to both sides at once, or only to the one that
// has the request or has not answered.
func (p *Backend) Release(ctx context.Context, r driver.Request) error {
	p.mu.Lock()
	q := p.requests[r.ID]
	if q == nil {
		q = &record{r: r} // it ended, or is not one of this client
		for i := range q.parts {
			q.parts[i].r, q.parts[i].sent = r, true
		}
	}
	q.ended = true
	if q.stopWait != nil {
		q.stopWait(errReleased)
	}
	parts := q.parts
	p.mu.Unlock()
	p.each(func(i int, b driver.Backend) {
		if a := &parts[i]; a.sent && !a.released {
			a.r.Uncertain = r.Uncertain
			a.answer = b.Release(ctx, a.r)
			a.released = a.answer == nil || errors.Is(a.answer, driver.ErrLost)
		}
	})
	p.mu.Lock()
	answered, lost := true, false
	for i := range parts {
		if !parts[i].sent {
			continue
		}
		if q.parts[i].released { // another copy of this call had the first answer
			parts[i].released, parts[i].answer = true, q.parts[i].answer
		}
		q.parts[i].released, q.parts[i].answer = parts[i].released, parts[i].answer
		answered, lost = answered && parts[i].released, lost || errors.Is(parts[i].answer, driver.ErrLost)
	}
	p.mu.Unlock()
	switch {
	case !answered && !parts[0].released && parts[0].sent:
		return parts[0].answer
	case !answered:
		return parts[1].answer
	}
	p.forget(q)
	if lost {
		return driver.ErrLost
	}
	return nil
}
