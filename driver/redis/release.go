package redis

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	var before kit.Request // as it is now
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	m, is := b.requests.Find(r.ID)
	if is {
		before = m.Releasing(r.Uncertain)
	}
	b.mu.Unlock()
	c := b.releaseCall(r, r.Uncertain || before.Uncertain, before.Until)
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

// releaseCall returns a call that removes the request wherever it stands. If a copy of its acquire
// may be under way, it leaves a tombstone. Until then the request cannot have expired.
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
	return b.call(releaseScript, r.Name, r.ID.String(), ttl, how)
}

// giveUp removes a request whose Acquire failed, in the background if it may stand somewhere. mu is
// held.
func (b *Backend) giveUp(m *request) {
	if !m.Stands && !m.Uncertain {
		b.requests.Remove(m)
		return
	}
	b.life.Go(func() { b.settle(m) })
}

// settle releases a request until the server has answered.
func (b *Backend) settle(m *request) {
	settled := kit.Settle(b.life.Context(), m.TTL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		b.mu.Lock()
		c := b.releaseCall(m.Request.Request, m.Uncertain, m.Until)
		b.mu.Unlock()
		_, err := b.pipes.run(ctx, b.life.Closed(), c)
		return err
	})
	if settled {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requests.Remove(m)
	}
}
