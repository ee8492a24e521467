package dlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/hold"
)

// Lease is a held lock: what Lock returned, until Unlock. It renews itself (unless it is a
// [FixedLease]) until it is released or lost, or the client is closed. It is safe for concurrent
// use. A nil or zero Lease is not held: its methods that return an error return [ErrInvalid], its
// Context has ended, and its Lost is closed.
type Lease struct {
	shares []*share      // one; for a lease of All those of its parts, in the order of locking
	all    *Lease        // the lease of All that has this one as a part
	lost   chan struct{} // made by the first call of Lost
	// the mutex of the first share guards all and lost
}

// share is the part that a lease has in a hold. The lock is released with the last share. A share
// is the [hold.Holder] of its lease, and the hold knows how it ended.
type share struct {
	lease *Lease // it is the only share of this lease; a lease of All has it too
	held  *held

	mu       sync.Mutex
	contexts map[*derived]struct{} // the contexts that end with it
}

// held is a hold of a client.
type held struct {
	hold.Hold
	c *Client
}

// derived is a context that Context returned.
type derived struct {
	cancel context.CancelCauseFunc
	detach func() bool
}

// newLease returns a lease with a share in the hold, which is not attached yet.
func newLease(h *held) *Lease {
	v := &struct { // one allocation
		lease Lease
		share share
		list  [1]*share
	}{share: share{held: h}}
	v.share.lease = &v.lease
	v.list[0] = &v.share
	v.lease.shares = v.list[:]
	return &v.lease
}

// Unlock releases the lease. The lock becomes free when the last lease of the hold is released;
// then the next waiter is granted. If ctx has ended already, the lease is released all the same,
// which takes a few seconds at most.
//
// Errors:
//   - [ErrNotHeld]: the lease was released before.
//   - [ErrLost]: the lease was lost; nothing was changed.
//   - [ErrClosed]: the client's Close ended the lease.
//   - Any other error leaves the outcome unknown. The lease has ended for the caller. It is
//     released in the background or expires within its TTL.
//
// If Unlock is the first call to learn of a loss, only its caller gets ErrLost. The lease itself
// then ends as if it was released: Lost stays open, and Err returns ErrNotHeld.
func (l *Lease) Unlock(ctx context.Context) error {
	if err := l.had("unlock", ctx); err != nil {
		return err
	}
	var errs []error
	for _, s := range slices.Backward(l.shares) {
		if err := s.unlock(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return join(errs)
}

// had returns the error for a lease that no lock returned, or for a nil context.
func (l *Lease) had(op string, ctx context.Context) error {
	switch {
	case l == nil || len(l.shares) == 0:
		return wrap(op, "", "", invalid("the lease is nil or its zero value; check the error of Lock"))
	case ctx == nil:
		return wrap(op, l.Name(), "", contextErr(ctx))
	}
	return nil
}

func (s *share) unlock(ctx context.Context) error {
	last, err := s.held.Detach(s)
	if last {
		err = s.held.release(ctx)
		s.held.Released(err)
	}
	return s.wrap("unlock", err)
}

// release releases a hold whose last share has been detached.
func (h *held) release(ctx context.Context) error {
	defer h.c.holds.Done()
	return h.c.release(ctx, *h.Request())
}

// join returns the one error as it is, or several joined.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Ended is called by the hold when the share has ended.
func (s *share) Ended(end error) {
	s.mu.Lock()
	contexts, all := s.contexts, s.lease.all
	s.contexts = nil
	s.mu.Unlock()
	if end == ErrLost {
		s.lease.closeLost()
		if all != nil {
			all.closeLost()
		}
	}
	for d := range contexts { // without the mutex: what they wake may call back
		d.detach()
		d.cancel(s.cause(end))
	}
}

// end returns why the share has ended, for good; nil if it has not.
func (s *share) end() error { return s.held.End(s) }

// cause returns the cause of a context that ends with the share.
func (s *share) cause(end error) error { return s.wrap("lease", end) }

// wrap wraps an error of the share.
func (s *share) wrap(op string, err error) error {
	if err == ErrNotHeld {
		err = errReleased
	}
	return wrap(op, s.held.Request().Name, s.held.c.caps.Backend, s.held.Cause(err))
}

// Context returns a context that carries the hold: a Lock of the same name under it re-enters. It
// ends with parent. It also ends when the lease does, with a cause ([context.Cause]) that matches
// ErrNotHeld if the lease was released, or else ErrLost or ErrClosed. Until one of the two ends it
// uses some memory: derive one context where the work begins, not one in each iteration of a loop.
func (l *Lease) Context(parent context.Context) context.Context {
	if err := l.had("lease", parent); err != nil && parent != nil {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(err)
		return ctx
	}
	for _, s := range l.shares {
		parent = s.context(parent)
	}
	return parent
}

func (s *share) context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	s.held.Judge() // it may have ended a moment ago
	s.mu.Lock()
	if end := s.end(); end != nil {
		s.mu.Unlock()
		cancel(s.cause(end))
	} else {
		d := &derived{cancel: cancel}
		d.detach = context.AfterFunc(ctx, func() { // it ended with its parent
			s.mu.Lock()
			delete(s.contexts, d)
			s.mu.Unlock()
		})
		if s.contexts == nil {
			s.contexts = map[*derived]struct{}{}
		}
		s.contexts[d] = struct{}{}
		s.mu.Unlock()
	}
	return carry(ctx, &carried{owner: s.held.owner(), held: s.held})
}

// Lost returns a channel that is closed if the lease is lost. Neither Unlock nor Close closes it.
func (l *Lease) Lost() <-chan struct{} {
	if l.had("lease", context.Background()) != nil {
		over := make(chan struct{})
		close(over)
		return over
	}
	mu := &l.shares[0].mu
	mu.Lock()
	defer mu.Unlock()
	if l.lost == nil {
		l.lost = make(chan struct{})
		if slices.ContainsFunc(l.shares, func(s *share) bool { return s.end() == ErrLost }) {
			close(l.lost)
		}
	}
	return l.lost
}

// closeLost closes what Lost returned, once.
func (l *Lease) closeLost() {
	mu := &l.shares[0].mu
	mu.Lock()
	defer mu.Unlock()
	if l.lost == nil {
		return
	}
	select {
	case <-l.lost:
	default:
		close(l.lost)
	}
}

// Err returns nil while the lease is held and trusted. After the lease has ended it always returns
// why: an error that matches [ErrLost], [ErrNotHeld] (released) or [ErrClosed]. It does no I/O,
// with one exception: if the wall clock ran ahead of the monotonic clock (the machine was
// suspended), it queries the backend for up to TTL/3. Any other error then means that there was no
// answer yet.
func (l *Lease) Err() error {
	if err := l.had("lease", context.Background()); err != nil {
		return err
	}
	for _, s := range l.shares {
		if err := s.err(); err != nil {
			return err
		}
	}
	return nil
}

func (s *share) err() error {
	if end := s.end(); end != nil {
		return s.wrap("lease", end)
	}
	known, err := s.held.Judge()
	if !known {
		ctx := bounded(s.held.c.ctx, &timeLimit{s.held.Request().TTL / 3}, &s.held.c.alarms)
		defer ctx.end()
		err = s.held.prove(ctx)
	}
	return s.wrap("lease", s.orEnd(err))
}

// orEnd returns err, or why the share has ended: a call reports the hold as lost if an Unlock of
// the share overtook it.
func (s *share) orEnd(err error) error {
	if err != nil {
		if end := s.end(); end != nil {
			return end
		}
	}
	return err
}

// Renew renews the lease now, with a call to the backend. The time of a [FixedLease] starts again.
//
// Errors:
//   - [ErrLost]: the lease is lost.
//   - [ErrNotHeld], [ErrClosed]: the lease had ended before.
//   - Any other error (after 10 s at most) leaves the lease as it was. It is trusted until the time
//     that Until returns.
func (l *Lease) Renew(ctx context.Context) error {
	if err := l.had("renew", ctx); err != nil {
		return err
	}
	var errs []error
	for _, s := range l.shares {
		if err := s.renew(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return join(errs)
}

func (s *share) renew(ctx context.Context) error {
	s.held.Judge() // it may have ended a moment ago
	err := s.end()
	if err == nil {
		err = s.orEnd(s.held.prove(ctx))
	}
	return s.wrap("renew", err)
}

// prove renews the hold with a call of its own.
func (h *held) prove(caller context.Context) error {
	ctx, err := h.c.begin(caller, noAnswer)
	if err != nil {
		return err
	}
	defer h.c.done(ctx)
	return explain(ctx, h.Prove(ctx))
}

// check reports whether the hold can be trusted now. It queries the backend if the clocks disagree.
func (h *held) check(ctx context.Context) error {
	if known, err := h.Judge(); known {
		return err
	}
	return h.prove(ctx)
}

// reenter returns another lease of the hold.
func (h *held) reenter(ctx context.Context) (*Lease, error) {
	if err := h.check(ctx); err != nil {
		return nil, err
	}
	l := newLease(h)
	if err := h.Attach(l.shares[0]); err != nil {
		return nil, err
	}
	return l, nil
}

func (h *held) owner() Owner {
	r := h.Request()
	return Owner{backend: h.c.caps.Backend, identity: h.c.set.identity, name: r.Name, id: r.Owner, token: h.Token()}
}

// Until returns the time until which the lease is trusted, with a monotonic reading. If the lease
// is not renewed before, it is lost then. Each renewal moves the time on. After the lease has ended
// it does not change. For a lease of [All] it is the earliest time of the parts.
func (l *Lease) Until() time.Time {
	if l == nil || len(l.shares) == 0 {
		return time.Time{}
	}
	least := l.shares[0].held.Until()
	for _, s := range l.shares[1:] {
		if u := s.held.Until(); u.Before(least) {
			least = u
		}
	}
	return least
}

// Token returns the fencing token. All leases of a hold have the same token, which is greater than
// the tokens of earlier exclusive holds of the name. It is 0 where Capabilities.Fencing is false,
// and for a lease of [All], whose parts have their own.
func (l *Lease) Token() Token {
	if l.ofAll() {
		return 0
	}
	return l.shares[0].held.Token()
}

// Name returns the name of the lock.
func (l *Lease) Name() string {
	if l == nil {
		return ""
	}
	if len(l.shares) == 1 {
		return l.shares[0].held.Request().Name
	}
	var names []string
	for _, s := range l.shares {
		names = append(names, s.held.Request().Name)
	}
	return strings.Join(names, ", ")
}

// Owner returns the owner of the hold, for [WithOwner] in another client or process. For a lease of
// [All] it is the zero Owner: the parts have their own.
func (l *Lease) Owner() Owner {
	if l.ofAll() {
		return Owner{}
	}
	return l.shares[0].held.owner()
}

// Leases returns the parts of a lease of [All], in the order in which they were locked. For any
// other lease it returns the lease itself.
func (l *Lease) Leases() []*Lease {
	if l == nil {
		return nil
	}
	var ls []*Lease
	for _, s := range l.shares {
		ls = append(ls, s.lease)
	}
	return ls
}

// ofAll reports whether the lease has no hold of its own. It is a zero lease, or All made it: its
// shares, even a single one, belong to other leases.
func (l *Lease) ofAll() bool { return l == nil || len(l.shares) == 0 || l.shares[0].lease != l }
