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
	c      *Client
	name   string
	mode   driver.Mode
	limit  int
	ttl    time.Duration
	fixed  bool
	hasTTL bool       // an option of the lock chose the TTL
	wait   *timeLimit // bounds the wait of Lock; nil: only its context does
	label  string
	err    error // what is not valid in these
}

func (c *Client) newLock(name string, mode driver.Mode, limit int, opts []LockOption) *lock {
	if err := c.opened(); err != nil {
		return &lock{c: &Client{}, name: name, err: err}
	}
	l := &lock{c: c, name: name, mode: mode, limit: limit, ttl: c.set.ttl, label: c.set.label}
	for _, o := range opts {
		if o == nil {
			l.err = errNilOption
			return l
		}
		o.lock(l)
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
	switch {
	case l.fixed && l.hasTTL:
		return invalid("both TTL and FixedLease are set; a lease is either renewed or fixed: set one of them")
	case l.fixed:
		if err := checkFixed("FixedLease", l.ttl, l.c.caps); err != nil {
			return err
		}
	default:
		if err := checkTTL(l.ttl, l.c.caps); err != nil {
			return err
		}
	}
	if l.wait != nil && l.wait.d < 0 {
		return invalid("Wait of %s; it must be 0, which makes Lock a TryLock, or more", l.wait.d)
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

// take is Lock, or TryLock if wait is not set, and calls the client's hooks.
func (l *lock) take(ctx context.Context, wait bool) (*Lease, error) {
	if ctx == nil {
		return nil, contextErr(ctx)
	}
	if len(l.c.hooks.lock) == 0 {
		return l.get(ctx, wait)
	}
	op := LockOp{Name: l.name, Backend: l.c.caps.Backend, Try: !l.waits(wait), Shared: l.mode == driver.Shared, Limit: l.limit, TTL: l.ttl, Reenters: l.reenters(ctx)}
	ctx, done := l.c.hooks.callLock(ctx, op)
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

// reenters reports whether the lock, taken under ctx, is another lease of a hold there.
func (l *lock) reenters(ctx context.Context) bool {
	in, _, err := carriedFor(ctx, l.c, l.name)
	return err == nil && in != nil && l.counts(in)
}

// counts reports whether the lock, taken under the hold, is another lease of it.
func (l *lock) counts(in *carried) bool {
	if in.held == nil || in.held.c != l.c {
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
	for {
		in, k, err := carriedFor(ctx, l.c, l.name)
		if err != nil {
			return nil, err
		}
		if in == nil {
			return l.c.acquire(ctx, r, l.within(r))
		}
		if lease, err := l.under(ctx, in, k, r); err != errOther {
			return lease, err
		}
	}
}

// under takes the lock under a hold, as another lease of it or by a join. The error is errOther if
// the hold turns out to stand in other queues.
func (l *lock) under(ctx context.Context, in *carried, k kinship, r driver.Request) (*Lease, error) {
	if h := in.held; h != nil {
		if l.counts(in) {
			lease, err := h.reenter(ctx)
			return lease, in.over(err)
		}
		if err := l.trusts(ctx, in); err != nil {
			return nil, err
		}
	} else if l.c.holds.Lost(l.name, in.owner.id) {
		return nil, in.over(ErrLost)
	}
	if !l.c.caps.Joins {
		return nil, l.without(ctx, in)
	}
	r.Owner, r.Token = in.owner.id, in.owner.token
	lease, err := l.c.acquire(ctx, r, l.within(r))
	if refused := (*notThere)(nil); errors.As(err, &refused) {
		return nil, l.askApart(ctx, in, refused.error)
	}
	if k == unknown && in.held != nil && (err == nil || errors.Is(err, ErrUpgrade)) {
		l.c.remember(in.held.c, same)
	}
	return lease, err
}

// trusts returns why a hold of this process has ended; nil if it has not. The service may still
// have a hold that its client no longer trusts or has closed.
func (l *lock) trusts(ctx context.Context, in *carried) error {
	err := in.held.check(ctx)
	if errors.Is(err, ErrClosed) && in.held.c != l.c {
		err = ErrLost
	}
	return in.over(err)
}

// notThere is the refusal of a join: its owner does not hold the lock.
type notThere struct{ error }

// Unwrap returns the answer of the service.
func (e *notThere) Unwrap() error { return e.error }

// within returns the time limit of a request. A request that does not wait in the queue is answered
// within the time of any call.
func (l *lock) within(r driver.Request) *timeLimit {
	if !r.Wait || r.Owner != (driver.ID{}) && (l.wait == nil || l.wait.d > answerTime) {
		return noAnswer
	}
	return l.wait
}

// lateGrants is how often a request may expire, in the queue or before its grant arrives, until
// Lock fails.
const lateGrants = 3

// acquire sends the request and makes a lease of the grant. It chooses the ID of the request, and
// its owner if it is no join.
func (c *Client) acquire(caller context.Context, r driver.Request, limit *timeLimit) (*Lease, error) {
	ctx, err := c.begin(caller, limit)
	if err != nil {
		return nil, err
	}
	defer c.done(ctx)
	h := &held{c: c}
	if len(c.hooks.ended) > 0 {
		h.Observe(c.hooks.onEnded(caller))
	}
	l, err := h.acquire(ctx, r)
	if err != nil {
		h.Forget()
	}
	return l, err
}

// acquire makes h the hold of r and returns its first lease. A request that expired before this
// client saw that, waiting or granted, is never resumed: a new one is sent instead.
func (h *held) acquire(ctx context.Context, r driver.Request) (*Lease, error) {
	c, join := h.c, !r.Owner.IsZero()
	held := false // the service said so, and to try again later
	for late := 0; ; {
		r.ID = driver.NewID()
		if !join {
			r.Owner = r.ID
		}
		c.holds.Expect(&h.Hold, r)
		g, err := c.holds.Acquire(ctx, r)
		if retry := (*driver.RetryError)(nil); r.Wait && errors.As(err, &retry) {
			held = true
			if pause(ctx, retry.After) == nil {
				continue
			}
			err = ctx.Err()
		}
		if held && ctx.Err() != nil && ofContext(err) && !errors.Is(err, ErrHeld) {
			err = driver.Waited(ctx)
		}
		// it expired while it waited, since its client showed no sign of life: it takes a new place
		if !join && r.Wait && errors.Is(err, ErrLost) && ctx.Err() == nil {
			if late++; late < lateGrants {
				continue
			}
			err = fmt.Errorf("%w: the request expired in the queue %d times before its client showed a sign of life; the TTL of %s may be too short", ErrLost, late, r.TTL)
		}
		if join && errors.Is(err, ErrLost) {
			return nil, &notThere{err}
		}
		if err != nil {
			return nil, explain(ctx, c.heldHere(ctx, r, err))
		}
		l := newLease(h)
		switch err := h.Granted(g, l.shares[0]); {
		case err == nil:
			return l, nil
		case err != hold.ErrLate:
			return nil, err
		case ctx.Err() != nil: // the caller does not wait any more
			c.holds.ReleaseLater(r)
			return nil, explain(ctx, ctx.Err())
		}
		r.Uncertain = true
		c.release(ctx, r)
		r.Uncertain = false
		if late++; late == lateGrants {
			return nil, fmt.Errorf("%w: %d grants had expired when they arrived; the TTL of %s may be too short", ErrLost, late, r.TTL)
		}
	}
}

// ownHold is an ErrHeld that is caused by a hold of this same client.
type ownHold struct {
	by     HeldError
	advice string
}

// heldHere returns err, a refusal or the end of a wait, in a form that says so if a hold of this
// same client stands against the request.
func (c *Client) heldHere(ctx context.Context, r driver.Request, err error) error {
	if r.Join() || !errors.Is(err, ErrHeld) {
		return err
	}
	by, ok := c.holds.Blocks(&r)
	if !ok {
		return err
	}
	own := &ownHold{HeldError{Label: by.Label, Age: by.Held}, by.Advice}
	if ctx.Err() != nil && ofContext(err) {
		return driver.WaitedFor(ctx, own)
	}
	return own
}

// Error gives the advice that helps if the context was forgotten.
func (e *ownHold) Error() string {
	return fmt.Sprintf("held by this client (%q, for %s); if this code holds it, %s", e.by.Label, e.by.Age.Round(time.Millisecond), e.advice)
}

// Unwrap returns the description of the holder, which matches ErrHeld.
func (e *ownHold) Unwrap() error { return &e.by }

// pause waits for d, more or less by up to half of it, so that waiters do not retry together.
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
