package mysql

import (
	"context"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	var before kit.Request // as it was known before
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	m, _ := b.requests.Find(r.ID)
	if m != nil {
		before = m.Releasing(r.Uncertain)
	}
	b.mu.Unlock()
	c := b.newRelease(r, r.Uncertain || before.Uncertain)
	if err := b.send(ctx, b.life.Closed(), r.Name, true, c); err != nil {
		return explain(err)
	}
	n, err := b.released(m, c)
	switch {
	case err != nil:
		return err
	case n == 1, n == 0 && before.RemovedBefore(int(c.doubt.Load())):
		return nil
	}
	return driver.ErrLost
}

// newRelease returns the call that releases a request, and leaves a tombstone for its TTL if that
// is asked for.
func (b *Backend) newRelease(r driver.Request, tombstone bool) *call {
	ttl := time.Duration(0)
	if tombstone {
		ttl = r.TTL
	}
	c := newCall("release", b.prefix, bin(r.Name), r.ID, r.Client, ttl, b.window())
	if !tombstone && !r.Join() {
		c.simple = simpleRelease(b.prefix, r)
	}
	return c
}

// released records the answer to a release: 1 the request was there, 0 it was not, -1 it was ended
// by an operator. m is nil if the request is not in the record.
func (b *Backend) released(m *request, c *call) (int, error) {
	row, err := c.sets.single(3)
	if err != nil {
		return 0, err
	}
	b.receive(c, row[2])
	b.mu.Lock()
	defer b.mu.Unlock()
	if m != nil {
		b.remove(m)
		b.advance(m.Name, row[1])
	}
	return strconv.Atoi(row[0])
}

// giveUp removes a request whose Acquire failed, in the background if it may stand somewhere. b.mu
// is held.
func (b *Backend) giveUp(m *request) {
	if !m.Stands && !m.Uncertain {
		b.remove(m)
		return
	}
	b.life.Go(func() {
		if !kit.Settle(b.life.Context(), m.TTL, func(ctx context.Context) error { return b.releaseAgain(ctx, m) }) {
			return // Close does it
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.remove(m)
	})
}

// releaseAgain releases a request that was given up.
func (b *Backend) releaseAgain(ctx context.Context, m *request) error {
	b.mu.Lock()
	r := m.Request.Request // a Release of it may come meanwhile
	b.mu.Unlock()
	c := b.newRelease(r, r.Uncertain)
	if err := b.send(ctx, b.life.Closed(), r.Name, true, c); err != nil {
		return err
	}
	_, _ = b.released(m, c)
	return nil
}
