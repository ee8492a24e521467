//go:build linux

package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer b.calls.Done()
	if r.TTL <= 0 || r.Name == "" || r.ID.IsZero() || r.Owner.IsZero() {
		return driver.Grant{}, fmt.Errorf("%w request: want a name, an ID, an owner and a TTL", driver.ErrInvalid)
	}
	if r.TTL < minTTL || r.TTL > maxTTL {
		return driver.Grant{}, fmt.Errorf("%w TTL %v: at least %v and at most %v", driver.ErrInvalid, r.TTL, minTTL, maxTTL)
	}
	b.clear(nil)
	h, fresh, err := b.hold(r)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := b.enter(ctx, h, r); err != nil {
		if fresh {
			b.drop(h) // it is not in the queue
		} else {
			b.abandon(h)
		}
		return driver.Grant{}, err
	}
	g, err := b.await(ctx, h)
	if err != nil {
		b.abandon(h)
	}
	return g, err
}

// hold returns our record of the request, and whether it is a new one. From now on whoever grants
// it finds that.
func (b *Backend) hold(r driver.Request) (h *hold, fresh bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.mine[r.ID]; h != nil {
		return h, false, nil
	}
	cell, word, err := b.session.take()
	if err != nil {
		return nil, false, err
	}
	name := b.prefix + r.Name
	h = &hold{name: name, slot: slot(name), id: r.ID, ttl: r.TTL, cell: cell, word: word, decided: make(chan struct{})}
	b.mine[r.ID] = h
	return h, true, nil
}

// await returns the grant of a request that stands in the queue, once it has one.
func (b *Backend) await(ctx context.Context, h *hold) (driver.Grant, error) {
	if g, err := b.granted(h); err != nil || g.Token != 0 {
		return g, err
	}
	b.join(h)
	defer b.part(h)
	select {
	case <-h.decided:
		if h.fault != nil {
			return driver.Grant{}, h.fault
		}
		return b.granted(h)
	case <-ctx.Done():
		return driver.Grant{}, driver.Waited(ctx)
	case <-b.closing:
		return driver.Grant{}, driver.ErrClosed
	}
}

// granted returns the grant of the request after it has proved it. Of one that waits the token is
// 0.
func (b *Backend) granted(h *hold) (driver.Grant, error) {
	s, err := b.read(h.slot)
	if err != nil {
		return driver.Grant{}, err
	}
	e, err := s.find(h.name, h.id)
	if err != nil {
		return driver.Grant{}, err
	}
	if e == nil || e.session != b.session.id {
		return driver.Grant{}, driver.ErrLost
	}
	since := time.Now()
	now, err := b.clock()
	if err != nil {
		return driver.Grant{}, err
	}
	h.mu.Lock()
	h.armed = max(h.armed, e.armed)
	h.mu.Unlock()
	if e.Token == 0 {
		return driver.Grant{}, nil
	}
	return driver.Grant{Token: e.Token, TTL: h.ttl, SentAt: since}, b.prove(h, now)
}

// enter puts the request into the queue, or resumes it.
func (b *Backend) enter(ctx context.Context, h *hold, r driver.Request) error {
	added := false
	err := b.update(ctx, h.slot, func(s *state, now int64) error {
		added = false
		if e, err := s.find(h.name, r.ID); e != nil || err != nil {
			return errors.Join(err, b.resume(s, e, h, r, now))
		}
		if h.entered.Load() || s.barred(h.name, r.ID) {
			return driver.ErrLost
		}
		q := s.queue(h.name)
		if q == nil {
			q = &queue{}
		}
		rule := q.rule()
		admitted, err := rule.Admit(r)
		if err != nil {
			return err
		}
		e := &entry{session: b.session.id, cell: h.cell, arrived: now, armed: now}
		e.Request = admitted
		e.Name, e.Wait, e.Uncertain = h.name, false, false
		rule.Arrivals = append(rule.Arrivals, &e.Entry)
		if !r.Wait && !r.Join() && (len(q.tail) > 0 || rule.Granted() < len(rule.Arrivals)) {
			return driver.ErrHeld
		}
		added = true
		return s.add(e)
	})
	if added && err == nil {
		h.entered.Store(true)
	}
	return err
}

// resume takes up a request that is in the queue already. It moves to this session, if another one
// sent it.
func (b *Backend) resume(s *state, e *entry, h *hold, r driver.Request, now int64) error {
	switch {
	case e == nil:
		return nil
	case e.Broken:
		return driver.ErrLost
	case !r.Wait && !e.Join() && e.Token == 0:
		return errors.Join(driver.ErrHeld, s.remove(h.name, r.ID))
	case e.session != b.session.id || e.cell != h.cell:
		return s.alter(h.name, r.ID, func(o *entry) *entry {
			return o.change(func(o *entry) { o.session, o.cell, o.TTL, o.armed = b.session.id, h.cell, h.ttl, now })
		})
	}
	return nil
}

// abandon gives back a request whose Acquire failed, in the background if that takes longer.
func (b *Backend) abandon(h *hold) {
	h.finish()
	done := make(chan struct{})
	b.calls.Go(func() {
		defer close(done)
		for b.leave(h) != nil {
			select {
			case <-b.closing: // which tries once more
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	select {
	case <-done:
	case <-time.After(50 * time.Millisecond):
	}
}

// leave takes the request out of the queue. Other errors than nil left it where it was.
func (b *Backend) leave(h *hold) error {
	err := b.update(context.Background(), h.slot, func(s *state, _ int64) error {
		return s.remove(h.name, h.id)
	})
	if err == nil {
		b.drop(h)
	}
	return err
}

// drop forgets a request that is not in the queue.
func (b *Backend) drop(h *hold) {
	h.finish()
	b.mu.Lock()
	defer b.mu.Unlock()
	h.decide(nil)
	if b.mine[h.id] == h {
		delete(b.mine, h.id)
		b.session.give(h.cell)
	}
}

// Release implements [driver.Backend].
func (b *Backend) Release(_ context.Context, r driver.Request) error {
	if err := b.begin(context.Background()); err != nil {
		return err
	}
	defer b.calls.Done()
	name := b.prefix + r.Name
	b.mu.Lock()
	h := b.mine[r.ID]
	b.mu.Unlock()
	if h != nil {
		h.finish()
	}
	var until int64
	err := b.update(context.Background(), slot(name), func(s *state, now int64) error {
		e, err := s.find(name, r.ID)
		if err == nil && e != nil {
			err = s.remove(name, r.ID)
		}
		if err != nil {
			return err
		}
		if r.Uncertain {
			until = now + int64(min(r.TTL, maxTTL))
			s.bury(tombstone{name, r.ID, until})
		}
		if e == nil || e.Broken {
			return driver.ErrLost
		}
		return nil
	})
	if h != nil && (err == nil || errors.Is(err, driver.ErrLost)) {
		b.drop(h)
	}
	b.clear(&grave{slot(name), until})
	return err
}

// grave is where this client has left a tombstone.
type grave struct {
	slot  int
	until int64
}

// clear removes some of the tombstones whose time is over: nobody might come to their slots again.
// It remembers fresh if that was left (until != 0).
func (b *Backend) clear(fresh *grave) {
	const some = 2
	b.mu.Lock()
	if fresh != nil && fresh.until != 0 {
		at, _ := slices.BinarySearchFunc(b.graves, fresh.until, func(g grave, t int64) int { return cmp.Compare(g.until, t) })
		b.graves = slices.Insert(b.graves, at, *fresh)
	}
	var over []grave
	if len(b.graves) > 0 {
		if now, err := b.clock(); err == nil {
			for len(over) < some && len(b.graves) > 0 && b.graves[0].until <= now {
				over, b.graves = append(over, b.graves[0]), b.graves[1:]
			}
		}
	}
	b.mu.Unlock()
	for _, g := range over {
		b.update(context.Background(), g.slot, nil) // what fails stays until somebody comes there
	}
}
