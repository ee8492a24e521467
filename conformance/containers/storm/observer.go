package main

import (
	"context"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

// observer records the queues, as a client that no fault of a network concerns sees them.
type observer struct {
	c     *dlock.Client
	w     *history.Writer
	names []string
}

// slowest is how long a call may take whose ages are used.
const slowest = 50 * time.Millisecond

// watch records the queues until ctx ends: each change, with the last call before it that returned
// the same as the one before.
func (o *observer) watch(ctx context.Context) {
	last, written := map[string]history.Event{}, map[string]bool{}
	for i := 0; ctx.Err() == nil; i++ {
		name := o.names[i%len(o.names)]
		if e, err := o.see(ctx, name); err == nil && e.At-e.From < int64(slowest) {
			before := last[name]
			if !same(before.Waiters, e.Waiters) || !same(before.Holders, e.Holders) {
				if !written[name] && before.At != 0 {
					o.w.Add(before)
				}
				o.w.Add(e)
				written[name] = true
			} else {
				written[name] = false
			}
			last[name] = e
		}
		rest(ctx, 3*time.Millisecond)
	}
}

// same reports whether two readings have the same requests, at the same places.
func same(a, b []history.Place) bool {
	return slices.EqualFunc(a, b, func(a, b history.Place) bool { return a.ID == b.ID && a.Same(b) })
}

// see reads a queue.
func (o *observer) see(ctx context.Context, name string) (history.Event, error) {
	e := history.Event{Kind: history.Seen, Proc: -1, Name: name, From: o.w.Now()}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := o.c.Inspect(ctx, name)
	e.At = o.w.Now()
	places := func(rs []dlock.Request) (ps []history.Place) {
		for _, r := range rs {
			ps = append(ps, history.Place{ID: r.ID, Arrived: (e.From+e.At)/2 - int64(r.Age), Shared: r.Shared, Token: uint64(r.Token)})
		}
		return ps
	}
	e.Holders, e.Waiters = places(q.Holders), places(q.Waiters)
	return e, err
}

// remains records what is left of each name, once nothing is, or after the patience.
func (o *observer) remains(ctx context.Context, patience time.Duration) {
	for end := time.Now().Add(patience); ; rest(ctx, 50*time.Millisecond) {
		late := time.Now().After(end)
		clean := true
		for _, name := range append(slices.Clone(o.names), o.listed(ctx)...) {
			e, err := o.see(ctx, name)
			e.Kind, e.Count = history.Remains, int64(len(e.Holders)+len(e.Waiters))
			if err != nil {
				e.Count, e.Text = 1, err.Error()
			}
			clean = clean && e.Count == 0
			if late && e.Count > 0 {
				o.w.Add(e)
			}
		}
		if clean || late || ctx.Err() != nil {
			return
		}
	}
}

// listed returns the names in use that are not among those of the storm.
func (o *observer) listed(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	all, err := o.c.List(ctx)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(n string) bool { return slices.Contains(o.names, n) })
}

// rest pauses.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
