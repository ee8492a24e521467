//go:build linux || darwin

package file

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
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
	if r.Mode != driver.Exclusive && r.Mode != driver.Shared { // a record has no other modes
		return driver.Grant{}, fmt.Errorf("%w request: unknown mode %d", driver.ErrInvalid, r.Mode)
	}
	if r.TTL < minTTL || r.TTL > maxTTL {
		return driver.Grant{}, kit.CheckTTL(r.TTL, b.Capabilities())
	}
	b.purgeTombstones()
	own, fresh, err := b.record(r)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := b.enqueue(ctx, own, r); err != nil {
		return driver.Grant{}, b.failed(own, err, fresh)
	}
	g, err := b.await(ctx, own)
	if err != nil {
		err = b.failed(own, err, false)
	}
	return g, err
}

// failed ends an Acquire that failed, and returns the error for its caller. absent means that the
// request is not in its queue: then the record of a refused request is removed. Any other record
// stays until the release.
func (b *Backend) failed(own *ownRequest, err error, absent bool) error {
	refused := driver.Refused(err)
	if refused && absent {
		b.forget(own)
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	own.failed, own.absent = true, absent
	if refused {
		err = driver.Unsettled(err)
	}
	return err
}

// granted proves the grant of a request and returns it. For a request that waits, the token is 0. A
// grant is valid only if the directory has not been moved since.
func (b *Backend) granted(own *ownRequest) (driver.Grant, error) {
	s, err := b.read(own.slot)
	if err != nil {
		return driver.Grant{}, err
	}
	e := s.find(own.name, own.id)
	if e == nil || e.session != b.session.id {
		return driver.Grant{}, driver.ErrLost
	}
	since := time.Now()
	now, err := b.clock()
	if err != nil {
		return driver.Grant{}, err
	}
	own.mu.Lock()
	own.armed = max(own.armed, e.armed)
	own.mu.Unlock()
	if e.Token == 0 {
		return driver.Grant{}, nil
	}
	if err = b.prove(own, now); err == nil {
		err = b.table.moved()
	}
	if err != nil {
		return driver.Grant{}, err
	}
	b.watch(own)
	return driver.Grant{Token: e.Token, TTL: own.ttl, SentAt: since}, nil
}

// enqueue puts the request into its queue, or resumes it if it stands there.
func (b *Backend) enqueue(ctx context.Context, own *ownRequest, r driver.Request) error {
	added := false
	err := b.update(ctx, own.slot, func(s *state, now int64) error {
		added = false
		if e := s.find(own.name, r.ID); e != nil {
			return b.resume(s, e, own, r, now)
		}
		if own.entered.Load() || s.hasTombstone(own.name, r.ID) {
			return driver.ErrLost
		}
		q := s.queue(own.name)
		if q == nil {
			q = &queue{}
		}
		rule := q.rule()
		admitted, err := rule.Admit(r)
		if err != nil {
			return err
		}
		e := &entry{session: b.session.id, cell: own.cell, arrived: now, armed: now}
		e.Request = admitted
		e.Name, e.Wait, e.Uncertain = own.name, false, false
		rule.Arrivals = append(rule.Arrivals, &e.Entry)
		if !r.Wait && !r.Join() && rule.Granted() < len(rule.Arrivals) {
			return q.held(now)
		}
		added = true
		s.add(e)
		return nil
	})
	if added && err == nil {
		own.entered.Store(true)
	}
	return err
}

// held returns the error that names a holder.
func (q *queue) held(now int64) error {
	granted, _ := q.granted()
	if len(granted) == 0 {
		return driver.ErrHeld
	}
	return &driver.HeldError{Label: granted[0].Label, Age: time.Duration(max(0, now-granted[0].arrived))}
}

// resume continues a request that is already in the queue. If another session sent it, it belongs
// to this session from then on.
func (b *Backend) resume(s *state, e *entry, own *ownRequest, r driver.Request, now int64) error {
	switch {
	case e.Broken:
		return driver.ErrLost
	case !r.Wait && !e.Join() && e.Token == 0:
		s.remove(own.name, r.ID)
		return driver.ErrHeld
	case e.session != b.session.id || e.cell != own.cell:
		s.alter(own.name, r.ID, func(o *entry) *entry {
			return o.change(func(o *entry) { o.session, o.cell, o.TTL, o.armed = b.session.id, own.cell, own.ttl, now })
		})
	}
	return nil
}
