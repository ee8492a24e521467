package redis

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	var before kit.OwnRequest // as it is now
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	m, is := b.requests.Find(r.ID)
	if is && (m.Nowhere() || m.Expired()) {
		b.requests.Remove(m)
		b.mu.Unlock()
		return driver.ErrLost
	}
	if is {
		before = m.Releasing(r.Uncertain)
		r.Uncertain = m.Uncertain
	}
	b.mu.Unlock()
	c := b.releaseCall(r, r.Uncertain, before.Until)
	reply, err := b.pipes.run(ctx, b.life.Closed(), c)
	b.mu.Lock()
	switch {
	case is && err == nil:
		b.requests.Remove(m)
	case is && c.copies == 0:
		m.Unsent()
	}
	b.mu.Unlock()
	if err != nil {
		return b.explain(ctx, r.Name, err)
	}
	n, _ := reply.(int64)
	if n == 1 || n == 0 && before.RemovedBefore(c.copies-1) {
		return nil
	}
	return driver.ErrLost
}

// releaseCall returns a call that removes the request wherever it stands. If tombstone is set, a
// copy of its acquire may be under way, and the call leaves a tombstone. The request cannot have
// expired before until.
func (b *Backend) releaseCall(r driver.Request, tombstone bool, until time.Time) *call {
	ttl, how := int64(0), ""
	if tombstone {
		ttl = r.TTL.Microseconds()
	}
	if time.Now().Before(until) {
		how = "c"
	}
	if r.TTL > b.o.KeepTokens {
		how += "l"
	}
	c := b.call(releaseScript, r.Name, r.ID.String(), ttl, how)
	c.urgent = true
	return c
}
