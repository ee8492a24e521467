package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// UnlockAfter gives the lease up and leaves the lock held for d more, counted from the call. The
// backend ends that by itself: the client may be closed, and its process die, before or after.
// Until then the lock is held as before, with the same token, for all but those who join the owner;
// only Break ends it sooner.
//
// d is at least the backend's MinTTL, at most its MaxFixed (its MaxTTL, if that is 0), and 24h; any
// other is [ErrInvalid]. [ErrUnsupported]: the backend cannot, since Capabilities say not
// FixedOutlives. After these the lease is held as before, and so it is after an error of the
// backend or the context: then UnlockAfter can be called again. [ErrLost], [ErrNotHeld]: the lease
// was over, or another call gave it back meanwhile, and nothing is left held of this one.
// [ErrClosed]: the client's Close ended it; if that was meanwhile, the lock may stay held for d.
// Any other error of giving the lease itself back is that of [Lease.Unlock], and the lock stays
// held for d all the same.
func (l *Lease) UnlockAfter(ctx context.Context, d time.Duration) error {
	if err := l.had("unlock after", ctx); err != nil {
		return err
	}
	undo, err := l.keep(ctx, d)
	if err != nil {
		return err
	}
	err = l.Unlock(ctx)
	if errors.Is(err, ErrNotHeld) || errors.Is(err, ErrLost) {
		undo() // this call has given nothing back, and so it keeps nothing
	}
	return err
}

// Once runs fn under m if nobody holds it, and keeps others out until atLeast after the start,
// however short fn was, and whatever becomes of this process: what runs once in each period on one
// of many replicas, at most. ran says whether fn was called. It is false, and the error nil, if
// somebody held the lock.
//
// The time is arranged before fn is called, so that a process which is killed in the middle keeps
// others out, too. fn runs under the lease's context, which ends if the lease is lost, and may take
// longer than atLeast: the lock is held for as long as fn runs.
//
// The error is that of TryLock, of arranging the time (those of [Lease.UnlockAfter]; ErrInvalid and
// ErrUnsupported come before anything is done), or those of fn and of Unlock, as of [Do].
func Once(ctx context.Context, m Mutex, atLeast time.Duration, fn func(ctx context.Context) error) (ran bool, err error) {
	if m == nil || fn == nil {
		return false, wrap("once", "", "", invalid("the mutex or the function is nil"))
	}
	if err := m.keeps(atLeast); err != nil {
		return false, wrap("once", m.Name(), "", err)
	}
	lease, err := m.TryLock(ctx)
	if errors.Is(err, ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	during := lease.Context(ctx)
	defer func() { err = outcome(ctx, during, err, lease.Unlock(ctx)) }()
	if _, err := lease.keep(ctx, atLeast); err != nil {
		return false, err
	}
	return true, fn(during)
}

// keeps returns why a lease of the lock could not be kept for d.
func (l *lock) keeps(d time.Duration) error {
	if l.err != nil {
		return l.err
	}
	return l.c.keeps(d)
}

func (a *all) keeps(d time.Duration) error {
	for _, p := range a.parts {
		if err := p.keeps(d); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) keeps(d time.Duration) error {
	if !c.caps.FixedOutlives {
		return fmt.Errorf("%w: a lock that stays held when its client is gone", ErrUnsupported)
	}
	return checkFixed(d, c.caps)
}

// keep arranges that the lock stays held for d, whatever becomes of the lease: for all of its parts
// or for none. On an error nothing has changed; undo gives back what it arranged.
func (l *Lease) keep(ctx context.Context, d time.Duration) (undo func(), err error) {
	for _, s := range l.shares {
		if err := s.held.c.keeps(d); err != nil {
			return nil, s.wrap("unlock after", err)
		}
	}
	var done []func()
	undo = func() {
		for _, f := range done {
			f()
		}
	}
	for _, s := range l.shares {
		f, err := s.keep(ctx, d)
		if err != nil {
			undo()
			return nil, s.wrap("unlock after", err)
		}
		done = append(done, f)
	}
	return undo, nil
}

// keep has a fixed request join the hold, which nobody counts on here. So it stands until its time
// like any fixed request, and the lock with it. Only the client's own record of it has to go then.
func (s *share) keep(ctx context.Context, d time.Duration) (undo func(), err error) {
	h, c := s.held, s.held.c
	h.Judge() // it may be over since a moment
	if end := s.end(); end != nil {
		return nil, end
	}
	b, err := c.begin(ctx, noAnswer)
	if err != nil {
		return nil, err
	}
	defer c.done(b)
	r := *h.Request()
	r.ID, r.Token, r.TTL, r.Fixed, r.Wait = driver.NewID(), h.Token(), d, true, false
	g, err := c.holds.Acquire(b, r)
	if err != nil {
		return nil, explain(b, s.orEnd(err))
	}
	c.holds.ReleaseAt(g.SentAt.Add(max(g.TTL, d)), r)
	return func() { c.holds.ReleaseLater(r) }, nil
}
