package dlock

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Election elects one leader among the candidates that campaign under one name. The leader holds
// the exclusive lock of that name, and the candidates wait for it in the order of arrival. It has
// no state of its own: two values with one name are the same election. It is safe for concurrent
// use. [Client.Election] makes one; the zero Election fails with [ErrInvalid].
type Election struct{ lock *lock }

// of returns the lock of the election; for a zero Election, one that fails.
func (e *Election) of() *lock {
	if e == nil || e.lock == nil {
		return &lock{c: &Client{}, err: invalid("the election is nil or its zero value; make one with Client.Election")}
	}
	return e.lock
}

// Election returns the election of that name. [TTL] bounds how long there is no leader after one
// died. [Label] is what observers see of a candidate, such as the address at which it serves.
// [Wait] has no effect: a candidate waits until it leads. With [FixedLease] a term ends when that
// time has passed, and a leader that dies, or whose client is closed, may leave the lock held until
// then. A name or option that is not valid is reported by the methods.
func (c *Client) Election(name string, opts ...LockOption) *Election {
	l := c.newLock(name, driver.Exclusive, 0, opts)
	l.wait = nil
	return &Election{lock: l}
}

// Leader is the leader, as the backend saw it a moment ago. The zero Leader means that there is
// none.
type Leader struct {
	Label string        // of the candidate
	Term  Token         // its fencing token; 0 where Capabilities.Fencing is false
	Age   time.Duration // since it became a candidate
	Left  time.Duration // until its term ends, unless it is renewed
}

const (
	// the pause after a campaign that failed; each failure in a row doubles it, and it varies by
	// half
	firstRetry   = 200 * time.Millisecond
	longestRetry = 8 * time.Second

	// between two queries of Watch
	leastWatch   = 50 * time.Millisecond
	longestWatch = 5 * time.Second
)

// Run campaigns until it leads, calls lead, and waits for lead to return. The context of lead ends
// with the term: it is lost, the client is closed, or ctx ends. Its cause says which. term is the
// fencing token. It grows from each leader to the next, so a resource that refuses a smaller token
// refuses former leaders. At any time at most one leader has a context that has not ended, except
// after [Force], and except for a process that was paused and has not checked its context yet.
//
// After a loss, once lead has returned, Run campaigns again. It also does so after an error of the
// backend. Before that it pauses: for some tenths of a second at first, and for up to 12 s if the
// errors go on.
//
// Run returns when
//   - lead returns while it leads, which resigns: what lead returned, joined with the error of the
//     release;
//   - ctx ends: its error, joined with that of lead, unless the latter only reports the end of the
//     context;
//   - an error is permanent ([IsPermanent]): that error, at once or when lead has returned, joined
//     in the same way. A nil lead is such an error ([ErrInvalid]). So is a context that carries a
//     hold of the election's lock: ErrInvalid, or [ErrLost] if that hold has ended.
//
// An error that lead returns after its term was lost is logged, unless it only reports the loss. If
// lead panics, the lock is released.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, term Token) error) error {
	l := e.of()
	switch {
	case l.err != nil:
		return e.wrap(l.err)
	case lead == nil:
		return e.wrap(invalid("the lead function is nil"))
	case ctx == nil:
		return e.wrap(contextErr(ctx))
	}
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		began := time.Now()
		t := e.serve(ctx, lead)
		switch {
		case ctx.Err() != nil:
			return also(e.wrap(contextErr(ctx)), t.failure)
		case t.resigned:
			return t.own
		case IsPermanent(t.end), errors.As(t.end, new(*overError)):
			return also(t.end, t.failure)
		}
		if t.failure != nil {
			l.c.set.logger.Warn("dlock: a leader failed after its term was lost", "name", l.name, "backend", l.c.caps.Backend, "err", t.failure)
		}
		switch lasted := time.Since(began); {
		case lasted > l.ttl && errors.Is(t.end, ErrLost), lasted > 2*longestRetry:
			wait = firstRetry // earlier failures have nothing to do with it
		}
		l.c.set.logger.Debug("dlock: campaigning again", "name", l.name, "backend", l.c.caps.Backend, "err", t.end)
		pause(ctx, wait)
	}
}

var errLeads = invalid("the context carries a hold of the election's lock, and a holder cannot campaign against itself; see dlock.WithoutOwner")

// term is what became of one campaign.
type term struct {
	resigned bool
	own      error // if it resigned: that of lead, joined with that of Unlock
	failure  error // that of lead, if it says more than that its context has ended
	end      error // why there was no term, or how it was lost
}

// serve waits for a term and leads in it.
func (e *Election) serve(ctx context.Context, lead func(context.Context, Token) error) term {
	in, k, err := carriedFor(ctx, e.lock.c, e.lock.name)
	if err == nil && in != nil && in.held != nil && k == same { // Lock would re-enter
		if err = e.lock.trusts(ctx, in); err == nil {
			err = errLeads
		}
	}
	if err != nil {
		return term{end: e.wrap(err)}
	}
	lease, err := e.lock.Lock(ctx)
	if errors.Is(err, ErrUpgrade) { // the hold is a shared one, and stands
		err = e.wrap(errLeads)
	}
	if err != nil {
		return term{end: err}
	}
	if lease.shares[0].held.Request().Join() {
		return term{end: e.wrap(also(errLeads, lease.Unlock(ctx)))}
	}
	returned := false
	defer func() {
		if !returned { // it panicked
			lease.Unlock(ctx)
		}
	}()
	during := lease.Context(ctx)
	own := lead(during, lease.Token())
	returned = true
	end := lease.Unlock(ctx)
	t := term{own: own, end: end}
	if own != nil && !ofEnd(during, own) {
		t.failure = own
	}
	if errors.Is(end, ErrLost) || errors.Is(end, ErrClosed) {
		return t
	}
	t.resigned, t.own = true, also(own, end)
	return t
}

// also returns err and more, joined if both are not nil.
func also(err, more error) error {
	switch {
	case more == nil:
		return err
	case err == nil:
		return more
	}
	return errors.Join(err, more)
}

// ofEnd reports whether err says no more than that ctx has ended: all its parts are the context's
// error or cause.
func ofEnd(ctx context.Context, err error) bool {
	if e, ok := err.(*Error); ok && errors.Is(e, ctx.Err()) {
		return true // a call of this package that ended with its context, and how far it got
	}
	switch u := err.(type) {
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if !ofEnd(ctx, e) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		if inner := u.Unwrap(); inner != nil {
			return ofEnd(ctx, inner)
		}
	}
	return errors.Is(err, ctx.Err()) || errors.Is(context.Cause(ctx), err)
}

// Leader returns the current leader, or the zero Leader if there is none. The caller need not be a
// candidate. By the time the caller acts on the answer another candidate may lead, and only Term
// protects the resource. Errors: those of [Client.Inspect].
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	l, _, err := e.leader(ctx)
	return l, err
}

// leader also returns an ID that distinguishes leaders where there are no tokens.
func (e *Election) leader(ctx context.Context) (Leader, driver.ID, error) {
	l := e.of()
	if l.err != nil {
		return Leader{}, driver.ID{}, e.wrap(l.err)
	}
	q, err := l.c.inspect(ctx, l.name)
	if err != nil {
		return Leader{}, driver.ID{}, err
	}
	for _, h := range q.Holders() {
		if h.Mode == driver.Exclusive {
			return Leader{Label: h.Label, Term: h.Token, Age: h.Age, Left: h.Left}, h.Owner, nil
		}
	}
	return Leader{}, driver.ID{}, nil
}

// Watch returns a sequence of leaders: first the current one, then each change. A change appears
// within a tenth of the TTL of this Election (at least 50 ms, at most 5 s) plus the time of one
// [Client.Inspect]. A vacancy, the zero Leader, is a change too. A state that lasts for a shorter
// time may be missed.
//
// Each outage yields one error, with the zero Leader, which means that the leader is unknown. When
// the backend answers again, the leader is yielded again. The sequence ends without an error when
// ctx ends, and after a permanent error ([IsPermanent]).
func (e *Election) Watch(ctx context.Context) iter.Seq2[Leader, error] {
	every := min(max(e.of().ttl/10, leastWatch), longestWatch)
	return func(yield func(Leader, error) bool) {
		if ctx == nil {
			yield(Leader{}, e.wrap(contextErr(ctx)))
			return
		}
		var last driver.ID
		for known, failing := false, false; ; {
			l, id, err := e.leader(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case IsPermanent(err):
				yield(Leader{}, err)
				return
			case err != nil:
				if !failing && !yield(Leader{}, err) {
					return
				}
				failing = true
			case !known || failing || id != last:
				known, failing, last = true, false, id
				if !yield(l, nil) {
					return
				}
			}
			t := time.NewTimer(every/2 + rand.N(every/2)) // not all observers at once
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
	}
}

func (e *Election) wrap(err error) error {
	l := e.of()
	return wrap("election", l.name, l.c.caps.Backend, err)
}
