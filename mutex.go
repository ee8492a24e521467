package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/hold"
)

// lock is the Mutex of one name.
type lock struct {
	c     *Client
	name  string
	mode  driver.Mode
	limit int
	ttl   time.Duration
	fixed bool
	wait  *timeLimit // how long Lock waits at most; nil: as long as its context
	label string
	err   error // what is wrong with all that
}

func (c *Client) newLock(name string, mode driver.Mode, limit int, opts []LockOption) *lock {
	l := &lock{c: c, name: name, mode: mode, limit: limit, ttl: c.set.ttl, label: c.set.label}
	for _, o := range opts {
		if o != nil {
			o.lock(l)
		}
	}
	l.err = l.check()
	return l
}

func (l *lock) check() error {
	if err := checkName(l.name); err != nil {
		return err
	}
	if err := checkText(l.label); err != nil {
		return invalid("label: %w", err)
	}
	if err := checkTTL(l.ttl, l.c.caps); err != nil {
		return err
	}
	if l.wait != nil && l.wait.d < 0 {
		return invalid("Wait of %s; it can be 0, which is TryLock, or more", l.wait.d)
	}
	switch {
	case l.mode == driver.Shared && l.limit > 0 && !l.c.caps.Semaphores:
		return fmt.Errorf("%w: semaphores", ErrUnsupported)
	case l.mode == driver.Shared && l.limit == 0 && !l.c.caps.Shared:
		return fmt.Errorf("%w: read-write locks", ErrUnsupported)
	}
	return nil
}

func (l *lock) Name() string { return l.name }

func (l *lock) Lock(ctx context.Context) (*Lease, error) {
	lease, err := l.take(ctx, true)
	return lease, wrap("lock", l.name, l.c.caps.Backend, err)
}

func (l *lock) TryLock(ctx context.Context) (*Lease, error) {
	lease, err := l.take(ctx, false)
	return lease, wrap("trylock", l.name, l.c.caps.Backend, err)
}

// take is Lock, or TryLock if wait is not set, and tells the client's hooks of it.
func (l *lock) take(ctx context.Context, wait bool) (*Lease, error) {
	if len(l.c.hooks.lock) == 0 {
		return l.get(ctx, wait)
	}
	op := LockOp{Name: l.name, Backend: l.c.caps.Backend, Try: !l.waits(wait), Shared: l.mode == driver.Shared, Limit: l.limit, TTL: l.ttl, Reenters: l.reenters(carriedFor(ctx, l.c, l.name))}
	ctx, done := l.c.hooks.tellLock(ctx, op)
	lease, err := l.get(ctx, wait)
	what := "lock"
	if !wait {
		what = "trylock"
	}
	err = wrap(what, l.name, l.c.caps.Backend, err)
	done(lease, err)
	return lease, err
}

// waits reports whether Lock, or TryLock if wait is not set, waits in the queue.
func (l *lock) waits(wait bool) bool { return wait && (l.wait == nil || l.wait.d > 0) }

// reenters reports whether the lock, taken under the hold, is another lease of that.
func (l *lock) reenters(in *carried) bool {
	if in == nil || in.held == nil || in.held.c != l.c {
		return false
	}
	r := in.held.Request()
	return r.Mode == l.mode && r.Semaphore() == (l.mode == driver.Shared && l.limit > 0)
}

// get takes the lock.
func (l *lock) get(ctx context.Context, wait bool) (*Lease, error) {
	if l.err != nil {
		return nil, l.err
	}
	if err := contextErr(ctx); err != nil {
		return nil, err
	}
	r := driver.Request{Name: l.name, Client: l.c.id, Mode: l.mode, Limit: l.limit, TTL: l.ttl, Fixed: l.fixed, Label: l.label, Wait: l.waits(wait)}
	if in := carriedFor(ctx, l.c, l.name); in != nil {
		if h := in.held; h != nil {
			if l.reenters(in) {
				return h.reenter(ctx)
			}
			// The service may still have what its client does not trust any more, or has closed.
			if err := h.check(ctx); errors.Is(err, ErrClosed) && h.c != l.c {
				return nil, ErrLost
			} else if err != nil {
				return nil, err
			}
		} else if l.c.holds.Lost(l.name, in.owner.id) {
			return nil, ErrLost
		}
		if !l.c.caps.Joins {
			return nil, fmt.Errorf("%w: joining the hold of another client or mode", ErrUnsupported)
		}
		r.Owner, r.Token = in.owner.id, in.owner.token
	}
	return l.c.acquire(ctx, r, l.within(r))
}

// within returns the time that a request has. One that does not wait in the queue is answered
// within the time of any call.
func (l *lock) within(r driver.Request) *timeLimit {
	if !r.Wait || r.Owner != (driver.ID{}) && (l.wait == nil || l.wait.d > answerTime) {
		return noAnswer
	}
	return l.wait
}

// lateGrants is how often a request may be over, waiting or when its grant arrives, before Lock
// gives up.
const lateGrants = 3

// acquire sends the request, whose ID (and owner, if it is no join) it chooses, and makes a lease
// of the grant.
func (c *Client) acquire(caller context.Context, r driver.Request, limit *timeLimit) (*Lease, error) {
	ctx, err := c.begin(caller, limit)
	if err != nil {
		return nil, err
	}
	defer c.done(ctx)
	h := &held{c: c}
	if len(c.hooks.ended) > 0 {
		h.Observe(c.hooks.tellEnded(caller))
	}
	l, err := h.acquire(ctx, r)
	if err != nil {
		h.Forget()
	}
	return l, err
}

// acquire makes h the hold of r, and returns its first lease. What was over before it was seen
// here, waiting or granted, is never resumed: a new request is sent instead.
func (h *held) acquire(ctx context.Context, r driver.Request) (*Lease, error) {
	c, join := h.c, !r.Owner.IsZero()
	held := false // the service said so, and to come again
	for late := 0; ; {
		r.ID = driver.NewID()
		if !join {
			r.Owner = r.ID
		}
		c.holds.Expect(&h.Hold, r)
		g, err := c.b.Acquire(ctx, r)
		if retry := (*driver.Retry)(nil); r.Wait && errors.As(err, &retry) {
			held = true
			if pause(ctx, retry.After) == nil {
				continue
			}
			err = ctx.Err()
		}
		if held && ctx.Err() != nil && ofContext(err) {
			err = driver.Waited(ctx)
		}
		// it expired while it waited, since its client was not heard of: it takes a new place
		if !join && r.Wait && errors.Is(err, ErrLost) && ctx.Err() == nil {
			if late++; late < lateGrants {
				continue
			}
			err = fmt.Errorf("%w: %d places in the queue were over before its client was heard of again; its TTL of %s may be too short", ErrLost, late, r.TTL)
		}
		if err != nil {
			return nil, explain(ctx, c.heldHere(r, err))
		}
		l := newLease(h)
		switch err := h.Granted(g, l.shares[0]); {
		case err == nil:
			return l, nil
		case err != hold.ErrLate:
			return nil, err
		case ctx.Err() != nil: // nobody waits for it any more
			c.holds.ReleaseLater(r)
			return nil, explain(ctx, ctx.Err())
		}
		r.Uncertain = true
		c.release(ctx, r)
		r.Uncertain = false
		if late++; late == lateGrants {
			return nil, fmt.Errorf("%w: %d grants were over when they arrived; their TTL of %s may be too short", ErrLost, late, r.TTL)
		}
	}
}

// heldHere makes a refusal say that it is a hold of this same client which stands against the
// request, if it is.
func (c *Client) heldHere(r driver.Request, err error) error {
	if !r.Wait && errors.Is(err, ErrHeld) && c.holds.Blocks(&r) {
		return errHeldHere
	}
	return err
}

// errHeldHere is ErrHeld by a hold of this same client.
var errHeldHere error = heldHere{}

type heldHere struct{}

// Error gives the advice that those need who forgot the context.
func (heldHere) Error() string {
	return "held by this client; if this code holds it, pass lease.Context"
}

// Is matches ErrHeld.
func (heldHere) Is(target error) bool { return target == ErrHeld }

// pause waits d, give or take half of it, so that those who wait do not come back together.
func pause(ctx context.Context, d time.Duration) error {
	d = max(d, time.Millisecond)
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
