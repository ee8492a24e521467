package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Lease is one lock held: what Lock returned, until Unlock. It renews itself (unless it is a
// [FixedLease]) until it is given back, the client is closed, or it is lost. It is safe for
// concurrent use.
type Lease struct {
	hold  *hold    // nil for a lease of All
	parts []*Lease // of a lease of All

	mu    sync.Mutex
	whole *Lease // the lease of All that this is a part of
	// nil while held; then for good ErrLost, ErrNotHeld (given back) or ErrClosed
	end      error
	lost     chan struct{}         // made when asked for
	contexts map[*derived]struct{} // those that end with the lease
}

// derived is a context that Context returned.
type derived struct {
	cancel context.CancelCauseFunc
	detach func() bool
}

// Unlock gives the lease back. The lock is free when the last lease of the hold is given back; then
// the next waiter is granted.
//
// A context that ended already does not keep it from being given back: that takes a few seconds at
// most. [ErrNotHeld]: it was given back before. [ErrLost]: it was lost; nothing was touched.
// [ErrClosed]: the client's Close gave it back. Any other error leaves the outcome unknown: the
// lease is over for the caller, and is given back in the background or expires within its TTL.
func (l *Lease) Unlock(ctx context.Context) error {
	if l.parts != nil {
		return l.unlockParts(ctx)
	}
	return l.hold.c.fail("unlock", l, l.unlock(ctx))
}

func (l *Lease) unlock(ctx context.Context) error {
	h := l.hold
	if err := l.expired(); err != nil {
		return err
	}
	h.c.mu.Lock()
	l.mu.Lock()
	if err := l.end; err != nil {
		l.mu.Unlock()
		h.c.mu.Unlock()
		return err
	}
	if h.over { // this moment; finish is on its way
		err := h.c.overLocked()
		l.mu.Unlock()
		h.c.mu.Unlock()
		return err
	}
	last := h.leave(l)
	if last {
		h.c.calls.Add(1) // Close waits for it
		defer h.c.calls.Done()
	}
	h.c.mu.Unlock()
	l.endLocked(ErrNotHeld)
	if !last {
		return nil
	}
	return h.c.release(ctx, h.req)
}

// graceOver ends what goes on after its caller's context ended.
var graceOver = &over{grace}

// release gives a request back now, or in the background if the outcome is unknown.
func (c *Client) release(ctx context.Context, r driver.Request) error {
	caller, limit := contextErr(ctx), noAnswer
	if caller != nil {
		ctx, limit = context.WithoutCancel(ctx), graceOver
	}
	b := bounded(ctx, limit)
	defer b.end()
	err := c.b.Release(b, r)
	if err == nil || errors.Is(err, ErrLost) {
		return err
	}
	c.mu.Lock()
	c.giveBack(r)
	c.mu.Unlock()
	if err = explain(b, err); caller != nil {
		err = fmt.Errorf("%w: %w", caller, err)
	}
	return err
}

// fail wraps what went wrong with a lease.
func (c *Client) fail(op string, l *Lease, err error) error {
	return wrap(op, l.Name(), c.caps.Backend, err)
}

// finish ends the lease, once.
func (l *Lease) finish(why error) {
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return
	}
	l.endLocked(why)
}

// endLocked ends the lease and releases l.mu, which is held: contexts are cancelled without it,
// since what they wake may come back here.
func (l *Lease) endLocked(why error) {
	l.end = why
	contexts, whole := l.contexts, l.whole
	l.contexts = nil
	if why == ErrLost && l.lost != nil {
		close(l.lost)
	}
	l.mu.Unlock()
	for d := range contexts {
		d.detach()
		d.cancel(l.cause(why))
	}
	if whole != nil && why != ErrNotHeld {
		whole.finish(why)
	}
}

// cause is that of a context which ends because of why.
func (l *Lease) cause(why error) error {
	if why == ErrNotHeld {
		return context.Canceled
	}
	return wrap("lease", l.Name(), l.backend(), why)
}

// Context returns a context that carries the hold: a Lock of the same name under it re-enters. It
// ends with parent; with the lease's Unlock; and if the lease is lost or the client closed, with a
// cause ([context.Cause]) that matches ErrLost or ErrClosed. Until one of them ends it takes some
// memory: derive one where the work begins, not one in each turn of a loop.
func (l *Lease) Context(parent context.Context) context.Context {
	if l.parts != nil {
		for _, p := range l.parts {
			parent = p.Context(parent)
		}
		return parent
	}
	ctx, cancel := context.WithCancelCause(parent)
	l.expired() // a lease that is over since a moment cancels it here
	l.mu.Lock()
	if end := l.end; end != nil {
		l.mu.Unlock()
		cancel(l.cause(end))
	} else {
		d := &derived{cancel: cancel}
		d.detach = context.AfterFunc(ctx, func() { // it ended with its parent: forget it
			l.mu.Lock()
			delete(l.contexts, d)
			l.mu.Unlock()
		})
		if l.contexts == nil {
			l.contexts = map[*derived]struct{}{}
		}
		l.contexts[d] = struct{}{}
		l.mu.Unlock()
	}
	return carry(ctx, &carried{owner: l.Owner(), hold: l.hold})
}

// Lost returns a channel that is closed if the lease is lost, and never otherwise: not by Unlock,
// not by Close.
func (l *Lease) Lost() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = make(chan struct{})
		if l.end == ErrLost {
			close(l.lost)
		}
	}
	return l.lost
}

// Err returns nil while the lease is held and trusted, and afterwards, for good, why it is over: an
// error that matches [ErrLost], [ErrNotHeld] (given back) or [ErrClosed]. It does no I/O but for
// one case: if the wall clock ran ahead of the monotonic one (the machine was suspended), it asks
// the backend, for up to TTL/3, and any other error says that there was no answer yet.
func (l *Lease) Err() error {
	if l.parts != nil {
		for _, p := range l.parts {
			if err := p.Err(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := l.ended(); err != nil {
		return l.hold.c.fail("lease", l, err)
	}
	h := l.hold
	known, err := h.judge()
	if !known {
		ctx := bounded(h.c.ctx, &over{h.req.TTL / 3})
		defer ctx.end()
		err = h.renew(ctx)
	}
	return h.c.fail("lease", l, l.orEnded(err))
}

// orEnded returns err, or why the lease is over: that of a hold says lost also if an Unlock of this
// lease went between.
func (l *Lease) orEnded(err error) error {
	if err != nil {
		if end := l.ended(); end != nil {
			return end
		}
	}
	return err
}

// ended returns why the lease is over, if it is.
func (l *Lease) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// expired ends a lease whose trust has run out, should the timer not have fired yet, and returns
// ErrLost then.
func (l *Lease) expired() error {
	if l.ended() != nil {
		return nil
	}
	h := l.hold
	h.c.mu.Lock()
	late := !h.over && !time.Now().Before(h.until)
	h.c.mu.Unlock()
	if !late {
		return nil
	}
	h.c.lose(h, h.overdue())
	return ErrLost
}

// Renew proves the lease now, with a call to the backend, and starts the time of a [FixedLease]
// anew. [ErrLost]: it is lost. [ErrNotHeld], [ErrClosed]: it was over before. Any other error
// (after 10 s at most) left it as it was; it is trusted until Until.
func (l *Lease) Renew(ctx context.Context) error {
	if l.parts != nil {
		var errs []error
		for _, p := range l.parts {
			errs = append(errs, p.Renew(ctx))
		}
		return errors.Join(errs...)
	}
	return l.hold.c.fail("renew", l, l.renew(ctx))
}

func (l *Lease) renew(ctx context.Context) error {
	if err := l.expired(); err != nil {
		return err
	}
	if err := l.ended(); err != nil {
		return err
	}
	return l.orEnded(l.hold.renew(ctx))
}

// Until returns the end of trust, with a monotonic reading: unless it is proved again before, the
// lease is lost then. Renewals move it on. After the end of the lease it stays where it was.
func (l *Lease) Until() time.Time {
	if l.parts != nil {
		least := l.parts[0].Until()
		for _, p := range l.parts[1:] {
			if u := p.Until(); u.Before(least) {
				least = u
			}
		}
		return least
	}
	l.hold.c.mu.Lock()
	defer l.hold.c.mu.Unlock()
	return l.hold.until
}

// Token returns the fencing token: the same for all leases of a hold, and greater than those of
// earlier exclusive holds of the name. It is 0 where Capabilities say no fencing, and for a lease
// of [All], whose parts have their own.
func (l *Lease) Token() Token {
	if l.parts != nil {
		return 0
	}
	return l.hold.token
}

// Name returns the name of the lock.
func (l *Lease) Name() string {
	if l.parts != nil {
		return names(l.parts)
	}
	return l.hold.req.Name
}

// Owner returns the hold's owner, for [WithOwner] in another client or process; of a lease of
// [All], the zero Owner: its parts have their own.
func (l *Lease) Owner() Owner {
	if l.parts != nil {
		return Owner{}
	}
	c := l.hold.c
	return Owner{backend: c.caps.Backend, identity: c.set.identity, name: l.hold.req.Name, id: l.hold.req.Owner, token: l.hold.token}
}

// Leases returns the parts of a lease of [All], in the order in which they were locked; of any
// other lease, itself.
func (l *Lease) Leases() []*Lease {
	if l.parts != nil {
		return append([]*Lease(nil), l.parts...)
	}
	return []*Lease{l}
}

func (l *Lease) backend() string {
	if l.parts != nil {
		return ""
	}
	return l.hold.c.caps.Backend
}
