package memory

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend]. A request that still waits fails with [driver.ErrNotHeld].
func (b *Backend) Renew(_ context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	s := b.begin()
	if s == nil {
		for i := range res {
			res[i].Err = driver.ErrClosed
		}
		return res
	}
	defer s.mu.Unlock()
	now := time.Now()
	for i := range rs {
		q, e := b.find(&rs[i], now)
		switch {
		case e == nil || e.Broken:
			res[i].Err = driver.ErrLost
		case !e.granted():
			res[i].Err = driver.ErrNotHeld
		default:
			q.renew(e, rs[i].TTL, now)
			s.setTimer(q, now)
			res[i] = driver.Renewal{TTL: e.TTL, SentAt: now}
		}
	}
	return res
}

// find returns the request and its queue; nil if the request is in no queue.
func (b *Backend) find(r *driver.Request, now time.Time) (*queue, *entry) {
	name := b.prefix + r.Name
	q := b.space.current(name, now)
	if e := b.space.requests[r.ID]; e != nil && e.Name == name {
		return q, e
	}
	return nil, nil
}
