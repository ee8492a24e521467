package mysql

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
			b.remove(m)
			b.mu.Unlock()
			return driver.ErrLost
		}
		before = m.Releasing(r.Uncertain)
		r.Uncertain = m.Uncertain
		b.mu.Unlock()
	}
	t := b.newTask(true)
	found, err := run(ctx, t, b.life.Closed(), func() (bool, error) {
		return b.release(t, r, r.Uncertain, m == nil || before.Granted())
	})
	if err != nil {
		return err
	}
	b.released(m)
	if found || !(m != nil && m.broken) && before.RemovedBefore(t.copies) {
		return nil
	}
	return driver.ErrLost
}

// release removes a request, grants what follows from that, and leaves a tombstone if tombstone is
// set. It reports whether the request was there and alive. granted says that it probably holds.
func (b *Backend) release(t *task, r driver.Request, tombstone, granted bool) (found bool, err error) {
	exclusive := r.Mode == driver.Exclusive && !r.Join()
	if exclusive && !granted && !tombstone { // usually it waits, and nothing follows
		if a, err := t.send(b.about(leaveWaiting, &r)); err != nil || a.affected > 0 {
			return true, err
		}
	}
	defer b.pollName(r.Name)
	if exclusive && granted && !tombstone {
		if !b.queued(&r) && b.give(t, r) {
			return true, nil
		}
		a, err := t.send(b.passOf(r.Name, fill(living, ":id", hexID(r.ID))))
		if err != nil || a.affected > 0 {
			return true, err
		}
	} else {
		passed := func() bool { return false }
		if !exclusive && granted && !tombstone && r.Limit > 0 {
			passed = b.letIn(&r)
		}
		a, err := t.send(b.about(leaveAlive, &r))
		if passed() && err == nil && a.affected > 0 { // the permit was passed on
			return true, nil
		}
		// the row of a request that was granted may stand for a while, and proves nothing
		if found = a.affected > 0 && !(exclusive && granted); err != nil {
			return found, err
		}
	}
	var p position
	if !found || exclusive {
		if p, err = b.look(t, &r, true); err != nil {
			return found, err
		}
		if p.ended(&r) { // so that a copy of the release is not taken for the first one
			b.ended(r.ID)
		}
		if p.kind == "request" || p.kind == "join" {
			// it has expired, or is broken, or a kill cut the previous statement short
			found = found || p.expires > 0 && !p.rowBroken && (!exclusive || p.place > p.head)
			_, err = t.send(fill(leave, ":ids", hexID(r.ID)))
		}
	}
	if err == nil && tombstone {
		if _, err = t.send(b.about(fill(entomb, ":ended", "0", ":lasts", micros(r.TTL)), &r)); err == nil {
			_, err = t.send(b.about(fill(raise, ":level", "2"), &r))
		}
	}
	if err != nil || exclusive && !tombstone && p.others < 2 && p.holder != r.ID {
		return found, err
	}
	_, held, err := b.advance(t, r.Name, r.ID)
	return found || held, err
}

// queued reports whether others are known to wait for what the request holds, or did when it was
// granted: then its release has to do more than free the lock.
func (b *Backend) queued(r *driver.Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, is := b.requests.Find(r.ID)
	return b.crowded(r) || is && m.place > 0
}

// letIn passes the permit of r on to the next waiter while r goes, so that the waiter need not wait
// for two commits. The result reports whether that was done.
func (b *Backend) letIn(r *driver.Request) (done func() bool) {
	c := make(chan bool, 1)
	go func() {
		t := b.newTask(true)
		t.patience = 0
		a, err := t.send(b.about(let, r))
		c <- err == nil && a.affected > 0
	}()
	return func() bool { return <-c }
}

// ended reports whether the request was broken when its position was read.
func (p *position) ended(r *driver.Request) bool {
	return p.holder == r.ID && p.broken || p.rowBroken
}

// ended records that a request was ended by an operator.
func (b *Backend) ended(id driver.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m, is := b.requests.Find(id); is {
		m.broken = true
	}
}

// released records that a request is released. m is nil if it is not in the record.
func (b *Backend) released(m *ownRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m != nil {
		b.remove(m)
	}
	b.sweepSoon(sweepTime)
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
