package adapt

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// releaseWaits is how long a release waits for a Try of its request to return. The answer may show
// that there is nothing to release, or that no late copy can take the lock.
const releaseWaits = time.Second

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	if r.Uncertain {
		b.tombstones.Add(r.ID, time.Now().Add(r.TTL))
	}
	m, is := b.requests.Find(r.ID)
	switch {
	case !is && r.Join() && b.sharer == nil:
		b.mu.Unlock()
		return driver.ErrLost // its hold is released on its own
	case !is:
		b.mu.Unlock()
		return b.release(ctx, r, 0)
	case m.hold != nil:
		b.mu.Unlock()
		return b.releaseJoin(ctx, m)
	}
	m.released = true
	trying := m.trying
	b.mu.Unlock()
	if trying != nil {
		wait, cancel := context.WithTimeout(ctx, releaseWaits)
		select {
		case <-trying:
		case <-wait.Done():
		case <-b.life.Closed():
		}
		cancel()
	}
	b.mu.Lock()
	if m.Nowhere() && m.trying == nil || b.o.Outlives && m.Expired() {
		b.requests.Remove(m)
		b.mu.Unlock()
		return driver.ErrLost
	}
	m.late = m.trying != nil
	m.Uncertain = m.Uncertain || m.late
	b.mu.Unlock()
	return b.releaseHold(ctx, m)
}

// releaseHold releases a request on record. If others joined its hold, the lock stays held for
// their time, and the request stays on record.
func (b *Backend) releaseHold(ctx context.Context, m *ownRequest) error {
	b.mu.Lock()
	r, after := m.Request, m.kept()
	r.Uncertain = m.Uncertain
	before := m.Releasing(false)
	b.mu.Unlock()
	err := b.release(ctx, r, after)
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && after > 0 {
		m.Releases = 0 // this one did not remove it
		return nil
	}
	b.requests.Remove(m)
	if err != nil && !m.lost && before.RemovedBefore(0) {
		return nil
	}
	return err
}

// release sends a release.
func (b *Backend) release(ctx context.Context, r driver.Request, after time.Duration) error {
	err := b.run(ctx, func(ctx context.Context) error { return b.calls.Release(ctx, r, after) })
	if err == nil && after == 0 {
		b.wakeLine(r.Name)
	}
	return err
}
