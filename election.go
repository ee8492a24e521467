package dlock

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Election is the election of one leader among all who campaign under one name: the leader holds
// the exclusive lock of that name, and the candidates wait for it in the order of arrival. It has
// no state of its own: two values of one name are one election. It is safe for concurrent use.
// [Client.Election] makes one; the zero Election refuses with [ErrInvalid].
type Election struct{ lock *lock }

// of returns the lock of the election; of a zero Election one that refuses.
func (e *Election) of() *lock {
	if e == nil || e.lock == nil {
		return &lock{c: &Client{}, err: invalid("the election is nil or its zero value; Client.Election makes one")}
	}
	return e.lock
}

// Election returns the election of that name. [TTL] bounds for how long there may be no leader
// after one died, and [Label] is what observers see of a candidate, such as the address at which it
// serves. [Wait] means nothing here: a candidate waits until it leads. With [FixedLease] a term
// ends when that time is over, and a leader that dies or is closed may leave the lock held until
// then. What is wrong with the name or the options is the error of what is called.
func (c *Client) Election(name string, opts ...LockOption) *Election {
	l := c.newLock(name, driver.Exclusive, 0, opts)
	l.wait = nil
	return &Election{lock: l}
}

// Leader is who leads, as the backend saw it a moment ago. The zero Leader is nobody.
type Leader struct {
	Label string        // the candidate's
	Term  Token         // its fencing token; 0 where Capabilities say no fencing
	Age   time.Duration // since it became a candidate
	Left  time.Duration // until its term ends, unless it is renewed
}

const (
	// the pause after a campaign that failed; each failure in a row doubles it, and it varies by
	// half
	firstRetry   = 200 * time.Millisecond
	longestRetry = 8 * time.Second

	// between two looks of Watch
	leastWatch   = 50 * time.Millisecond
	longestWatch = 5 * time.Second
)

// Run campaigns until it leads, calls lead, and waits for lead to return. The context of lead ends
// when the term does: it is lost, the client is closed, or ctx ends. Its cause says which. term is
// the fencing token: it grows from each leader to the next, and a resource that refuses a smaller
// one refuses who led before. No two leads have contexts that live at the same time, but for a
// process that was paused and has not looked yet, and after [Force].
//
// After a loss, when lead has returned, Run campaigns again, and so it does after an error of the
// backend. Before that it pauses: for some tenths of a second at first, and for up to 12 s if that
// goes on.
//
// Run returns when
//   - lead returns while it leads, which resigns: what lead returned, joined with the error of
//     giving the lock back;
//   - ctx ends: its error, joined with that of lead if it says more than that its context ended;
//   - trying again cannot mend the error ([IsPermanent]): that error, at once, or when lead has
//     returned, joined in the same way. A nil lead is one ([ErrInvalid]), and so is a context that
//     has a hold of the election's lock: ErrInvalid, or [ErrLost] if that hold is over.
//
// What lead returns after its term was lost is reported in the log, if it says more than that. If
// lead panics, the lock is given back.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, term Token) error) error {
	l := e.of()
	switch {
	case l.err != nil:
		return e.wrap(l.err)
	case lead == nil:
		return e.wrap(invalid("the function that leads is nil"))
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
			wait = firstRetry // what was before has nothing to do with it
		}
		l.c.set.logger.Debug("dlock: campaigns again", "name", l.name, "backend", l.c.caps.Backend, "err", t.end)
		pause(ctx, wait)
	}
}

var errLeads = invalid("this context has a hold of the lock of the election: who leads cannot stand against itself; see WithoutOwner")

// term is what became of one campaign.
type term struct {
	resigned bool
	own      error // of one that resigned: of lead, joined with that of Unlock
	failure  error // of lead, if it says more than that its context has ended
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

// also returns err, joined with more if there is any.
func also(err, more error) error {
	switch {
	case more == nil:
		return err
	case err == nil:
		return more
	}
	return errors.Join(err, more)
}

// ofEnd reports whether err says no more than that ctx has ended: all that it is made of is of the
// context's error or cause.
func ofEnd(ctx context.Context, err error) bool {
	if e, ok := err.(*Error); ok && errors.Is(e, ctx.Err()) {
		return true // a call of this package that ended with its context, and how far it had come
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

// Leader returns who leads now; the zero Leader if nobody does. Errors: as of [Client.Inspect]. Who
// asks need not be a candidate, and whatever is done with the answer, only Term protects it: by
// then somebody else may lead.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	l, _, err := e.leader(ctx)
	return l, err
}

// leader also returns what tells this leader from others where there are no tokens.
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

// Watch returns who leads: first the leader of now, then each change within a tenth of the TTL of
// this Election (50 ms at least, 5 s at most) and the time of one call, which is an Inspect.
// Vacancy, the zero Leader, is a change too; what lasts for a shorter time may be passed over.
//
// An error comes once for each outage, with the zero Leader, and says that nobody knows who leads;
// then, when the backend answers again, the leader comes again. The sequence ends when ctx ends,
// without an error, and after an error that trying again cannot mend ([IsPermanent]).
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
