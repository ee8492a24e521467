package pair

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// park has the request renewed at the first side while it waits at the second. One that was
// released since the first granted it does not wait: that release was not sent to the second.
func (p *Backend) park(q *record, stop context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q.stopWait = stop
	if q.ended {
		stop(errReleased)
	}
	p.parked[q.r.ID] = q
	p.arm()
}

// unpark ends that.
func (p *Backend) unpark(q *record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.copies > 1 {
		return
	}
	q.stopWait = nil
	delete(p.parked, q.r.ID)
}

// arm sets the timer of the next renewal. mu is held.
func (p *Backend) arm() {
	if p.closed || len(p.parked) == 0 {
		return
	}
	next := time.Now().Add(p.third())
	switch {
	case p.timer == nil:
		p.timer = time.AfterFunc(time.Until(next), p.renewParked)
	case next.Before(p.next) && p.timer.Stop():
		p.timer.Reset(time.Until(next))
	default:
		return
	}
	p.next = next
}

// third returns a third of the shortest TTL of the parked requests. mu is held.
func (p *Backend) third() time.Duration {
	d := time.Duration(math.MaxInt64)
	for _, q := range p.parked {
		d = min(d, q.r.TTL/3)
	}
	return d
}

// renewParked renews the parked requests at the first side. One that is lost there stops waiting at
// the second; whose proof has ended without an answer, too.
func (p *Backend) renewParked() {
	p.mu.Lock()
	p.timer = nil
	if p.closed || len(p.parked) == 0 {
		p.mu.Unlock()
		return
	}
	p.calls.Add(1)
	defer p.calls.Done()
	var qs []*record
	var rs []driver.Request
	bound := p.third()
	for _, q := range p.parked {
		qs, rs = append(qs, q), append(rs, q.parts[0].r)
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.ctx, bound)
	defer cancel()
	ns := p.sides[0].Backend.Renew(ctx, rs)
	for i, q := range qs {
		if ns[i].Err == nil {
			p.proved(q, 0, ns[i])
		}
		p.mu.Lock()
		if stop := q.stopWait; stop != nil && (errors.Is(ns[i].Err, driver.ErrLost) || time.Now().After(q.parts[0].until())) {
			stop(errLostAhead)
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arm()
}
