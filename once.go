package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// UnlockAfter ends the lease and leaves the lock held for d more, counted from the call. The
// backend then frees the lock by itself, even if the client is closed or its process dies
// meanwhile. Until then the lock is held as before, with the same token, against all requests
// except joins of the owner. Only Break ends it sooner. If the backend takes longer than d to
// answer, the call is Unlock. d is at least the backend's MinTTL, and at most its MaxFixed (its
// MaxTTL if that is 0) and 24h.
//
// After [ErrInvalid] (d is out of range), [ErrUnsupported] (Capabilities.FixedOutlives is not set),
// and an error of the backend or the context, the lease is held as before, Err returns nil, and
// UnlockAfter can be called again. After other errors the lease has ended:
//   - [ErrLost], [ErrNotHeld]: the lease had ended, or another call released it meanwhile. This
//     call leaves nothing held.
//   - [ErrClosed]: the client's Close ended the lease. If that was during this call, the lock may
//     stay held for d.
//   - Any other error is that of [Lease.Unlock], with which the call ends the lease. The lock stays
//     held for d all the same.
func (l *Lease) UnlockAfter(ctx context.Context, d time.Duration) error {
	if err := l.had("unlock after", ctx); err != nil {
		return err
	}
	start := time.Now()
	undo, err := l.keep(ctx, kept{d: d})
	if errors.Is(err, ErrLost) {
		over := time.Since(start) >= d // so what was to keep the lock held may have expired
		if ended := l.Unlock(ctx); over {
			return ended
		}
		return err
	}
	if err != nil {
		return err
	}
	err = l.Unlock(ctx)
	if errors.Is(err, ErrNotHeld) || errors.Is(err, ErrLost) {
		undo() // this call released nothing, so it keeps nothing held
	}
	return err
}

// OncePer runs fn at most once per period on one of many replicas, each of which calls OncePer on
// its own schedule. It takes m without waiting and keeps it held until the period is almost over,
// counted from the start, even if fn was short and this process has ended meanwhile. ran reports
// whether fn was called. If m is held, ran is false and the error is nil: another replica ran fn in
// this period, or still does.
//
// m becomes free a tenth of the period before its end, at most a minute before, so that the next
// call finds it free although schedules and clocks differ a little. Two runs begin at least nine
// tenths of a period apart. fn may take longer than the period: m stays held while it runs.
//
// Under a context that carries a hold of m, OncePer re-enters that hold and runs fn each time. With
// readers or permits, fn runs once per period for each that can hold m together.
//
// The backend agrees to keep m held before fn is called, so a process that is killed in fn keeps
// the other replicas out as well. fn runs under the lease's context, which ends if the lease is
// lost.
//
// The error is that of TryLock; that of keeping m held, as for [Lease.UnlockAfter] ([ErrInvalid]
// and [ErrUnsupported] are returned before anything is sent); or those of fn and of Unlock, as for
// [Do]. A nil m or fn fails with ErrInvalid.
func OncePer(ctx context.Context, m Mutex, period time.Duration, fn func(ctx context.Context) error) (ran bool, err error) {
	if m == nil || fn == nil {
		return false, wrap("once per", "", "", invalid("the mutex or the function is nil"))
	}
	if err := m.keeps(periodic(period)); err != nil {
		return false, wrap("once per", m.Name(), "", err)
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
	if _, err := lease.keep(ctx, periodic(period)); err != nil {
		return false, err
	}
	return true, fn(during)
}

// kept is how long a lock is to stay held, whatever becomes of its client.
type kept struct {
	d        time.Duration
	period   time.Duration // the argument of OncePer
	periodic bool          // OncePer is the caller
}

func periodic(period time.Duration) kept {
	return kept{period - min(period/10, time.Minute), period, true}
}

// check refuses a time that the backend does not support, in terms of what the caller gave.
func (k kept) check(caps Capabilities) error {
	if !k.periodic {
		return checkFixed("UnlockAfter", k.d, caps)
	}
	least, most := bounds(fixedCaps(caps))
	if k.d < least || k.d > most {
		return invalid("period of %s; %s to %s are allowed here", k.period, roundUp(whole(least)), whole(most).Truncate(time.Millisecond))
	}
	return nil
}

// whole returns the period for which a lock is kept held for d.
func whole(d time.Duration) time.Duration { return d + min(d/9, time.Minute) }

// keeps returns why a lease of the lock could not be kept for that time; nil if it could.
func (l *lock) keeps(k kept) error {
	if l.err != nil {
		return l.err
	}
	return l.c.keeps(k)
}

func (a *all) keeps(k kept) error {
	for _, p := range a.parts {
		if err := p.keeps(k); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) keeps(k kept) error {
	if !c.caps.FixedOutlives {
		return fmt.Errorf("%w: keeping a lock held after its client has gone", ErrUnsupported)
	}
	return k.check(c.caps)
}

// keep arranges that the lock stays held for that time, whatever becomes of the lease: for all of
// its parts or for none. On an error nothing has changed; undo releases what it arranged.
func (l *Lease) keep(ctx context.Context, k kept) (undo func(), err error) {
	for _, s := range l.shares {
		if err := s.held.c.keeps(k); err != nil {
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
		f, err := s.keep(ctx, k.d)
		if err != nil {
			undo()
			return nil, s.wrap("unlock after", err)
		}
		done = append(done, f)
	}
	return undo, nil
}

// keep has a fixed request join the hold. No lease counts on that request, so it stands until its
// time like any fixed request, and the lock with it. Only the client's own record of it has to be
// removed then.
func (s *share) keep(ctx context.Context, d time.Duration) (undo func(), err error) {
	h, c := s.held, s.held.c
	h.Judge() // it may have ended a moment ago
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
	c.holds.ReleaseAt(time.Now().Add(max(g.TTL, d)), r) // the service began to count before
	return func() { c.holds.ReleaseLater(r) }, nil
}
