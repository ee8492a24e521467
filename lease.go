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

// Lease is one lock held: what Lock returned, until Unlock. It renews itself (unless it is a
// [FixedLease]) until it is given back, the client is closed, or it is lost. It is safe for
// concurrent use. A nil or zero Lease is not held: what returns an error returns [ErrInvalid], and
// its Context has ended.
type Lease struct {
	shares []*share      // one; of a lease of All those of its parts, in the order of their locking
	all    *Lease        // the lease of All that this is a part of
	lost   chan struct{} // made when asked for
	// the mutex of the first share guards all and lost
}

// share is what a lease has of a hold: the last one given back frees the lock. It is the
// [hold.Holder] there, and the hold knows how it ended.
type share struct {
	lease *Lease // whose only one it is; that of All has it too
	held  *held

	mu       sync.Mutex
	contexts map[*derived]struct{} // those that end with it
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

// newLease returns a lease with a share in the hold, to which nobody has attached it yet.
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

// Unlock gives the lease back. The lock is free when the last lease of the hold is given back; then
// the next waiter is granted.
//
// A context that ended already does not keep it from being given back: that takes a few seconds at
// most. [ErrNotHeld]: it was given back before. [ErrLost]: it was lost; nothing was touched.
// [ErrClosed]: the client's Close gave it back. Any other error leaves the outcome unknown: the
// lease is over for the caller, and is given back in the background or expires within its TTL.
//
// An Unlock that is the first to learn of the loss tells its caller alone: the lease ends as one
// that was given back, so Lost stays open, and Err is ErrNotHeld.
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

// had returns what is wrong with a lease that no lock returned, or with a nil context.
func (l *Lease) had(op string, ctx context.Context) error {
	switch {
	case l == nil || len(l.shares) == 0:
		return wrap(op, "", "", invalid("the lease is nil or its zero value; the error of Lock says why there is none"))
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

// release gives back a hold whose last share was.
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

// Ended is what the hold calls when the share is over.
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
	for d := range contexts { // without the mutex: what they wake may come back here
		d.detach()
		d.cancel(s.cause(end))
	}
}

// end returns why the share is over, for good; nil if it is not.
func (s *share) end() error { return s.held.End(s) }

// cause is that of a context which ends with the share.
func (s *share) cause(end error) error { return s.wrap("lease", end) }

// wrap wraps what went wrong with the share.
func (s *share) wrap(op string, err error) error {
	return wrap(op, s.held.Request().Name, s.held.c.caps.Backend, s.held.Cause(err))
}

// Context returns a context that carries the hold: a Lock of the same name under it re-enters. It
// ends with parent; and when the lease is over, with a cause ([context.Cause]) that says why: it
// matches ErrNotHeld if the lease was given back, ErrLost or ErrClosed. Until one of them ends it
// takes some memory: derive one where the work begins, not one in each turn of a loop.
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
	s.held.Judge() // it may be over since a moment
	s.mu.Lock()
	if end := s.end(); end != nil {
		s.mu.Unlock()
		cancel(s.cause(end))
	} else {
		d := &derived{cancel: cancel}
		d.detach = context.AfterFunc(ctx, func() { // it ended with its parent: forget it
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

// Lost returns a channel that is closed if the lease is lost, and never otherwise: not by Unlock,
// not by Close.
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

// Err returns nil while the lease is held and trusted, and afterwards, for good, why it is over: an
// error that matches [ErrLost], [ErrNotHeld] (given back) or [ErrClosed]. It does no I/O but for
// one case: if the wall clock ran ahead of the monotonic one (the machine was suspended), it asks
// the backend, for up to TTL/3, and any other error says that there was no answer yet.
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

// orEnd returns err, or why the share is over: the hold is lost to a call that an Unlock of the
// share overtook.
func (s *share) orEnd(err error) error {
	if err != nil {
		if end := s.end(); end != nil {
			return end
		}
	}
	return err
}

// Renew proves the lease now, with a call to the backend, and starts the time of a [FixedLease]
// again. [ErrLost]: it is lost. [ErrNotHeld], [ErrClosed]: it was over before. Any other error
// (after 10 s at most) left it as it was; it is trusted until Until.
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
	s.held.Judge() // it may be over since a moment
	err := s.end()
	if err == nil {
		err = s.orEnd(s.held.prove(ctx))
	}
	return s.wrap("renew", err)
}

// prove proves the hold with a call of its own.
func (h *held) prove(caller context.Context) error {
	ctx, err := h.c.begin(caller, noAnswer)
	if err != nil {
		return err
	}
	defer h.c.done(ctx)
	return explain(ctx, h.Prove(ctx))
}

// check reports whether the hold can be trusted now. It asks the backend if the clocks disagree.
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

// Until returns the end of trust, with a monotonic reading: unless it is proved again before, the
// lease is lost then. Renewals move it on. After the end of the lease it stays where it was.
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

// Token returns the fencing token: the same for all leases of a hold, and greater than those of
// earlier exclusive holds of the name. It is 0 where Capabilities say no fencing, and for a lease
// of [All], whose parts have their own.
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

// Owner returns the hold's owner, for [WithOwner] in another client or process; of a lease of
// [All], the zero Owner: its parts have their own.
func (l *Lease) Owner() Owner {
	if l.ofAll() {
		return Owner{}
	}
	return l.shares[0].held.owner()
}

// Leases returns the parts of a lease of [All], in the order in which they were locked; of any
// other lease, itself.
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

// ofAll reports whether the lease has no hold of its own: All made it, whose shares, even if it is
// one, are those of others, or it is a zero one.
func (l *Lease) ofAll() bool { return l == nil || len(l.shares) == 0 || l.shares[0].lease != l }
