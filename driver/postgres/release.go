package postgres

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	var before kit.OwnRequest // what was known of it before
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	m, _ := b.requests.Find(r.ID)
	b.mu.Unlock()
	if m != nil {
		if err := b.awaitLeft(ctx, m); err != nil {
			return err
		}
		b.mu.Lock()
		if m.Nowhere() || m.Expired() {
			b.requests.Remove(m)
			b.mu.Unlock()
			return driver.ErrLost
		}
		before = m.Releasing(r.Uncertain)
		r.Uncertain = m.Uncertain
		b.mu.Unlock()
	}
	t := b.newTask()
	found, err := run(ctx, t, b.life.Closed(), func() (bool, error) {
		return b.release(t, r, r.Uncertain, m == nil || before.Granted())
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if m != nil {
		b.requests.Remove(m)
	}
	b.sweepSoon()
	if found || !(m != nil && m.broken) && before.RemovedBefore(t.copies) {
		return nil
	}
	return driver.ErrLost
}

// release removes a request, grants what follows from that, and leaves a tombstone if tombstone is
// set. It reports whether the request was there and alive. granted says that it probably holds.
func (b *Backend) release(t *task, r driver.Request, tombstone, granted bool) (found bool, err error) {
	if r.Mode == driver.Exclusive && !r.Join() && granted && !tombstone && !b.queued(&r) {
		if found, err := b.give(t, r); found || err != nil {
			return found, err
		}
	}
	c := &call{t: t, r: r, do: leaves, entombs: tombstone, lasts: r.TTL}
	if err := b.visit(c); err != nil {
		return false, err
	}
	if c.broken { // so that a copy of the release is not taken for the first one
		b.mu.Lock()
		if m, is := b.requests.Find(r.ID); is {
			m.broken = true
		}
		b.mu.Unlock()
	}
	return c.alive, nil
}

// queued reports whether others are known to wait for what the request holds, or did when it was
// granted: then its release has to do more than free the lock.
func (b *Backend) queued(r *driver.Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, is := b.requests.Find(r.ID)
	return b.waiters.Group(r.Name) != nil || is && m.place > 0
}

// awaitLeft waits for what a failed Acquire has left under way. If the outcome is not known after
// that, the release leaves a tombstone, which slows the name down for a TTL.
func (b *Backend) awaitLeft(ctx context.Context, m *ownRequest) error {
	b.mu.Lock()
	left, until := m.left, m.leftUntil
	b.mu.Unlock()
	if left == nil {
		return nil
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-left.over:
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.life.Closed():
		return driver.ErrClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.left = nil; left.doubt.Load() == 0 {
		m.Stands, m.Uncertain = true, false
	}
	return nil
}
