package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var elections = []Law{
	{Name: "election", run: election, stall: tenthOfRenewedTTL,
		Sentence: "whether the leader is cut off, broken by an operator or closed, no second one leads while there is trust in the first, terms grow, and an observer sees vacancy and successor"},
}

// office records who leads, and holds every lead to the law.
type office struct {
	e *env

	mu   sync.Mutex
	last *lead // the one that began last; nil: none did
}

// lead is one term.
type lead struct {
	who   string
	ctx   context.Context
	term  dlock.Token
	lease *dlock.Lease // a share of the hold, which tells until when it is trusted
	began time.Time
}

// run has the client campaign until the law ends.
func (o *office) run(c *dlock.Client, who, name string) (resign func(), done <-chan error) {
	ended, resigned := make(chan error, 1), make(chan struct{})
	ctx, stop := context.WithCancel(o.e.ctx)
	o.e.Cleanup(stop)
	go func() {
		ended <- o.e.election(c, who, name).Run(ctx, func(ctx context.Context, term dlock.Token) error {
			l := &lead{who: who, ctx: ctx, term: term, began: time.Now()}
			l.lease, _ = c.Mutex(name).Lock(ctx) // it may be lost already
			if l.lease != nil {
				defer l.lease.Unlock(ctx)
			}
			o.begins(l)
			select {
			case <-ctx.Done():
			case <-resigned:
			}
			return nil
		})
	}()
	return func() { close(resigned) }, ended
}

func (e *env) election(c *dlock.Client, who, name string) *dlock.Election {
	return c.Election(name, dlock.TTL(e.renewedTTL), dlock.Label(who))
}

func (o *office) begins(l *lead) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.last; p != nil {
		if p.lease != nil && p.ctx.Err() == nil && l.began.Before(p.lease.Until()) {
			o.e.strict().Errorf("%s leads while there is trust in the term of %s for %s more", l.who, p.who, p.lease.Until().Sub(l.began))
		}
		if o.e.caps.Fencing && l.term <= p.term {
			o.e.strict().Errorf("the term of %s is %d, and that of %s before was %d", l.who, l.term, p.who, p.term)
		}
	}
	o.last = l
}

// leads waits until that one leads in a term other than the one before.
func (o *office) leads(who string, before *lead) (now *lead) {
	o.e.Helper()
	o.e.until(who+" leads", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		now = o.last
		return now != nil && now != before && now.who == who && now.ctx.Err() == nil
	})
	return now
}

func election(e *env) {
	p, b, name := e.peer(), e.client(), e.name()
	o := &office{e: e}
	w := e.watch(name)
	w.sees("nobody, at first", "", 0)

	_, endedP := o.run(p.Client, "p", name)
	first := o.leads("p", nil)
	w.sees("the first leader", "p", first.term)
	resign, endedB := o.run(b, "b", name)
	if e.caps.Queue {
		e.becomes(name, 1, 1)
	}

	heal := p.partition()
	second := o.leads("b", first)
	e.until("the context of a leader that was cut off ended", func() bool { return first.ctx.Err() != nil })
	e.want("its cause", context.Cause(first.ctx), dlock.ErrLost)
	w.sees("the successor of a leader that was cut off", "b", second.term)
	heal()

	resign()
	// one whose term a stall ended waits for the next
	e.until("Run of a leader that resigned returned", func() bool { return len(endedB) > 0 })
	if err := <-endedB; err != nil {
		e.Fatalf("Run of a leader that resigned: %v", err)
	}
	third := o.leads("p", second)
	w.sees("who was cut off, in a term of its own", "p", third.term)

	if _, ok := e.probe.(driver.Breaker); ok && e.caps.Fencing {
		err := call(e, "Break", func(ctx context.Context) error { return b.Break(ctx, name, third.term, dlock.Force()) })
		if err != nil {
			e.Fatalf("Break: %v", err)
		}
		broken := third
		third = o.leads("p", broken)
		e.want("the cause of a term that was broken", context.Cause(broken.ctx), dlock.ErrLost)
	}

	e.close(p)
	e.until("the term ended with its client", func() bool { return third.ctx.Err() != nil })
	e.want("Run of a client that was closed", call(e, "Run of a client that was closed", func(context.Context) error { return <-endedP }), dlock.ErrClosed)
	w.sees("nobody, after Close", "", 0)
}

// watcher is an observer of an election, which is no candidate.
type watcher struct {
	e  *env
	mu sync.Mutex
	at dlock.Leader
	n  int
}

func (e *env) watch(name string) *watcher {
	w := &watcher{e: e}
	if !e.caps.Inspect {
		return w
	}
	ctx, stop := context.WithCancel(e.ctx)
	c := e.client()
	done := make(chan struct{})
	e.Cleanup(func() {
		stop()
		e.ends("Watch whose context ended", func() { <-done })
	})
	go func() {
		defer close(done)
		for l, err := range e.election(c, "observer", name).Watch(ctx) {
			if err != nil {
				if !errors.Is(err, dlock.ErrClosed) {
					e.Logf("Watch: %v", err)
				}
				continue
			}
			w.mu.Lock()
			w.at = l
			w.n++
			w.mu.Unlock()
		}
	}()
	return w
}

// sees waits until the observer sees that one lead.
func (w *watcher) sees(what, who string, term dlock.Token) {
	w.e.Helper()
	if !w.e.caps.Inspect {
		return
	}
	if !w.e.caps.Fencing {
		term = 0
	}
	var at dlock.Leader
	w.e.until(fmt.Sprintf("an observer sees %s", what), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		at = w.at
		return w.n > 0 && at.Label == who && at.Term == term
	})
}
