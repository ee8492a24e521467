package memory

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Release implements [driver.Backend].
func (b *Backend) Release(_ context.Context, r driver.Request) error {
	s := b.begin()
	if s == nil {
		return driver.ErrClosed
	}
	defer s.mu.Unlock()
	now := time.Now()
	if r.Uncertain {
		s.tombstones.add(r.ID, now.Add(r.TTL))
	}
	q, e := b.find(&r, now)
	if e == nil {
		return driver.ErrLost
	}
	s.remove(q, e, driver.ErrLost)
	s.evaluate(q, now)
	if e.Broken {
		return driver.ErrLost
	}
	return nil
}
