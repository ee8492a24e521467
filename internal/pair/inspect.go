package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend]. The queue is that of the second side, followed by those that
// wait at the first: a request holds if it holds on both, and so far as the second is concerned
// only the holders of the first are there.
func (p *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	queues, err := p.queues(ctx, name)
	if err != nil {
		return driver.Queue{}, err
	}
	arrivals := p.merge(queues[0].Arrivals, queues[1].Arrivals)
	joins := p.merge(queues[0].Joins, queues[1].Joins)
	return driver.Queue{Arrivals: arrivals, Joins: joins}, nil
}

// queues reads the queue of the name on both sides.
func (p *Backend) queues(ctx context.Context, name string) (queues [2]driver.Queue, err error) {
	if !p.caps.Inspect {
		return queues, fmt.Errorf("%w: one of the two backends cannot read its queues", driver.ErrUnsupported)
	}
	var errs [2]error
	p.each(func(i int, b driver.Backend) { queues[i], errs[i] = b.Inspect(ctx, name) })
	for _, err := range errs {
		if err != nil {
			return queues, err
		}
	}
	return queues, nil
}

// merge joins the entries of both sides that are of one request.
func (p *Backend) merge(first, second []*driver.Entry) []*driver.Entry {
	var all []*driver.Entry
	rest := slices.Clone(first)
	for _, e := range second {
		i := slices.IndexFunc(rest, func(f *driver.Entry) bool { return f != nil && !e.Foreign && matches(f.ID, e.ID) })
		if i < 0 {
			all = append(all, e)
			continue
		}
		one := *rest[i]
		one.Token = p.token(&one.Request, one.Token, e.Token)
		one.Broken = one.Broken || e.Broken
		one.Left = min(one.Left, e.Left)
		all, rest[i] = append(all, &one), nil
	}
	for _, f := range rest {
		if f != nil {
			all = append(all, f)
		}
	}
	return all
}

// lister is the pair of two backends that list their names.
type lister struct{ p *Backend }

// List implements [driver.Lister].
func (l lister) List(ctx context.Context) ([]string, error) {
	var names [2][]string
	var errs [2]error
	l.p.each(func(i int, b driver.Backend) { names[i], errs[i] = b.(driver.Lister).List(ctx) })
	all := slices.Concat(names[0], names[1])
	slices.Sort(all)
	return slices.Compact(all), errors.Join(errs[:]...)
}

// breaker is the pair of two backends whose holds can be broken.
type breaker struct{ p *Backend }

// Break implements [driver.Breaker]. It breaks the hold on each side that has it. A side without
// tokens would break the holds of other readers too. There it is only removed, if by force: its
// clients learn of the break from the other side.
func (b breaker) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	queues, err := b.p.queues(ctx, name)
	if err != nil {
		return err
	}
	q := driver.Queue{Arrivals: b.p.merge(queues[0].Arrivals, queues[1].Arrivals), Joins: b.p.merge(queues[0].Joins, queues[1].Joins)}
	i := slices.IndexFunc(q.Holders(), func(e *driver.Entry) bool { return e.Token == t })
	if i < 0 {
		return driver.ErrNotHeld
	}
	hold := q.Holders()[i]
	if hold.Foreign {
		return fmt.Errorf("%w: the hold is of other software, which would not be notified", driver.ErrUnsupported)
	}
	var errs [2]error
	b.p.each(func(i int, side driver.Backend) {
		of, others := ofHold(queues[i], hold)
		elsewhere, _ := ofHold(queues[1-i], hold)
		caps, at := b.p.sides[i].Caps, b.p.sides[1-i].Caps
		switch {
		case len(of) == 0:
			errs[i] = driver.ErrNotHeld
		case !caps.Fencing && at.Fencing && others && len(elsewhere) > 0:
			for _, e := range of {
				if !force {
					continue
				}
				r := e.Request
				r.Uncertain = true
				if err := side.Release(ctx, r); err != nil && !errors.Is(err, driver.ErrLost) {
					errs[i] = err
				}
			}
		default:
			errs[i] = side.(driver.Breaker).Break(ctx, name, of[0].Token, force)
		}
	})
	for i, err := range errs {
		if errs[1-i] == nil && errors.Is(err, driver.ErrNotHeld) {
			return nil
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// ofHold returns the requests of a hold that a side has, and whether others hold there too.
func ofHold(q driver.Queue, hold *driver.Entry) (of []*driver.Entry, others bool) {
	for _, e := range q.Holders() {
		if !e.Foreign && matches(e.Owner, hold.Owner) {
			of = append(of, e)
		} else {
			others = true
		}
	}
	return of, others
}
