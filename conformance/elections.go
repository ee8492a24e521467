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
		Sentence: "if the leader is cut off, broken by an operator or closed, no other client leads while the first leader's lease is trusted, terms grow, and an observer sees the vacancy and the successor"},
}

// office records the terms of an election, and checks each of them.
type office struct {
	e *env

	mu   sync.Mutex
	last *term // the one that began last; nil: none yet
}

// term is one term of a leader.
type term struct {
	label string
	ctx   context.Context
	token dlock.Token
	lease *dlock.Lease // a share of the hold, which shows until when it is trusted
	began time.Time
}

// run makes the client campaign until the law ends.
func (o *office) run(c *dlock.Client, label, name string) (resign func(), done <-chan error) {
	ended, resigned := make(chan error, 1), make(chan struct{})
	ctx, stop := context.WithCancel(o.e.ctx)
	o.e.Cleanup(stop)
	go func() {
		ended <- o.e.election(c, label, name).Run(ctx, func(ctx context.Context, token dlock.Token) error {
			l := &term{label: label, ctx: ctx, token: token, began: time.Now()}
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

func (e *env) election(c *dlock.Client, label, name string) *dlock.Election {
	return c.Election(name, dlock.TTL(e.renewedTTL), dlock.Label(label))
}

func (o *office) begins(l *term) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.last; p != nil {
		if p.lease != nil && p.ctx.Err() == nil && l.began.Before(p.lease.Until()) {
			o.e.strict().Errorf("%s leads while the term of %s is trusted for another %s", l.label, p.label, p.lease.Until().Sub(l.began))
		}
		if o.e.caps.Fencing && l.token <= p.token {
			o.e.strict().Errorf("the term of %s is %d, and the term of %s before it was %d", l.label, l.token, p.label, p.token)
		}
	}
	o.last = l
}

// leads blocks until the client with that label leads in a term other than before.
func (o *office) leads(label string, before *term) (now *term) {
	o.e.Helper()
	o.e.until(label+" leads", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		now = o.last
		return now != nil && now != before && now.label == label && now.ctx.Err() == nil
	})
	return now
}

func election(e *env) {
	p, b, name := e.peer(), e.client(), e.name()
	o := &office{e: e}
	w := e.watch(name)
	w.sees("no leader at first", "", 0)

	_, endedP := o.run(p.Client, "p", name)
	first := o.leads("p", nil)
	w.sees("the first leader", "p", first.token)
	resign, endedB := o.run(b, "b", name)
	if e.caps.Queue {
		e.becomes(name, 1, 1)
	}

	heal := p.partition()
	second := o.leads("b", first)
	e.until("the context of a leader that was cut off ended", func() bool { return first.ctx.Err() != nil })
	e.want("its cause", context.Cause(first.ctx), dlock.ErrLost)
	w.sees("the successor of a leader that was cut off", "b", second.token)
	heal()

	resign()
	// if a stall ended its term, it campaigns for the next one
	e.until("Run of a leader that resigned returned", func() bool { return len(endedB) > 0 })
	if err := <-endedB; err != nil {
		e.Fatalf("Run of a leader that resigned: %v", err)
	}
	third := o.leads("p", second)
	w.sees("the client that was cut off, in a new term", "p", third.token)

	if _, ok := e.probe.(driver.Breaker); ok && e.caps.Fencing {
		err := call(e, "Break", func(ctx context.Context) error { return b.Break(ctx, name, third.token, dlock.Force()) })
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
	w.sees("no leader after Close", "", 0)
}

// watcher observes an election without being a candidate.
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

// sees blocks until the observer sees the client with that label lead in that term.
func (w *watcher) sees(what, label string, term dlock.Token) {
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
		return w.n > 0 && at.Label == label && at.Term == term
	})
}
