package dlock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// All returns a Mutex that locks all of ms or none. The parts can be of any kind and of any
// clients. They are locked one after another in the order of their names, then of their backends'
// schemes, then of their clients' [Identity] keys, whatever the order given, so that two callers of
// All cannot deadlock. A lease of All is lost if any part is; Unlock still releases the others.
// Under an outer hold, All can deadlock with another caller that took the same locks in another
// order.
//
// Its Lock fails with [ErrInvalid] for a nil mutex, for no mutex, for the same name twice on one
// backend, and for equal names on two backends that nothing distinguishes (give their clients
// different [Identity] keys).
func All(ms ...Mutex) Mutex {
	a := &all{}
	for _, m := range ms {
		switch m := m.(type) {
		case *lock:
			if m == nil {
				a.err = invalid("a mutex given to All is nil")
				return a
			}
			a.parts = append(a.parts, m)
		case *all:
			if m.err != nil {
				a.err = m.err
				return a
			}
			a.parts = append(a.parts, m.parts...)
		default:
			a.err = invalid("a mutex given to All is nil, or of another package")
			return a
		}
	}
	a.err = a.sort()
	return a
}

type all struct {
	parts []*lock
	err   error
}

func (a *all) sort() error {
	if len(a.parts) == 0 {
		return invalid("All has no mutex; give it at least one")
	}
	order := func(x, y *lock) int {
		return cmp.Or(cmp.Compare(x.name, y.name), cmp.Compare(x.c.caps.Backend, y.c.caps.Backend), cmp.Compare(x.c.set.identity, y.c.set.identity))
	}
	slices.SortStableFunc(a.parts, order)
	for i, y := range a.parts[1:] {
		if x := a.parts[i]; order(x, y) == 0 {
			if x.c.kinship(y.c) == same {
				return invalid("the name %q is given to All twice; once is enough", x.name)
			}
			return invalid("the name %q is given to All for two %s backends that nothing distinguishes; give each client an Identity of its own", x.name, x.c.caps.Backend)
		}
	}
	return nil
}

// Name returns the names of the parts, in order, with commas between.
func (a *all) Name() string {
	var s []string
	for _, p := range a.parts {
		s = append(s, p.name)
	}
	return strings.Join(s, ", ")
}

func (a *all) Lock(ctx context.Context) (*Lease, error) {
	l, err := a.take(ctx, true)
	return l, wrap("lock", a.Name(), "", err)
}

func (a *all) TryLock(ctx context.Context) (*Lease, error) {
	l, err := a.take(ctx, false)
	return l, wrap("trylock", a.Name(), "", err)
}

func (a *all) take(ctx context.Context, wait bool) (*Lease, error) {
	if a.err != nil {
		return nil, a.err
	}
	if ctx == nil {
		return nil, contextErr(ctx)
	}
	whole := &Lease{}
	waiting := ctx // ends too if a part already held is lost
	for _, p := range a.parts {
		l, err := p.take(waiting, wait)
		if err != nil {
			if ctx.Err() == nil && len(whole.shares) > 0 {
				err = cmp.Or(whole.Err(), err)
			}
			op := "lock"
			if !wait {
				op = "trylock"
			}
			whole.abandon(ctx)
			return nil, wrap(op, p.name, p.c.caps.Backend, err)
		}
		whole.shares = append(whole.shares, l.shares...)
		waiting = l.Context(waiting)
	}
	for _, s := range whole.shares {
		s.mu.Lock()
		s.lease.all = whole
		s.mu.Unlock()
	}
	return whole, nil
}

// abandon releases the parts that Lock has so far. Errors about holds that no caller has seen are
// not reported. It returns soon after ctx has ended, as Lock must, and continues in the background.
func (l *Lease) abandon(ctx context.Context) {
	if len(l.shares) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Unlock(ctx)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	t := time.NewTimer(50 * time.Millisecond)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
