//go:build linux || darwin

package file

import (
	"context"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.calls.Done()
	name = b.prefix + name
	i := slot(name)
	broken := map[sessionID]bool{} // the clients whose holds it ends
	err := b.update(ctx, i, func(s *state, _ int64) error {
		found := false
		clear(broken)
		s.each(name, func(e *entry) *entry {
			if t == 0 || e.Token != t {
				return e
			}
			found = true
			switch {
			case force:
				broken[e.session] = true
				return nil
			case e.Broken:
				return e
			}
			return e.change(func(e *entry) { e.Broken = true })
		})
		if !found {
			return driver.ErrNotHeld
		}
		return nil
	})
	for s := range broken {
		if s == b.session.id {
			b.notifyPoller(i)
		} else if err == nil && s != 0 {
			b.table.wakeUp(s, i)
		}
	}
	if err == nil {
		// computes when the broken hold ends; if it fails the next update does
		b.update(context.Background(), i, nil)
	}
	return err
}

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Queue{}, err
	}
	defer b.calls.Done()
	name = b.prefix + name
	i := slot(name)
	if err := b.update(ctx, i, nil); err != nil {
		return driver.Queue{}, err
	}
	s, err := b.read(i)
	if err != nil {
		return driver.Queue{}, err
	}
	now, err := b.clock()
	q := s.queue(name)
	if q == nil || err != nil {
		return driver.Queue{}, err
	}
	var out driver.Queue
	show := func(es []*entry, to *[]*driver.Entry) {
		for _, e := range es {
			cell, dead, err2 := b.life(e, now)
			if left := e.expires(cell) - now; err2 != nil {
				err = err2
			} else if !dead && left > 0 {
				c := e.Entry
				c.Name = strings.TrimPrefix(c.Name, b.prefix)
				c.Age, c.Left = time.Duration(max(0, now-e.arrived)), time.Duration(left)
				*to = append(*to, &c)
			}
		}
	}
	show(q.arrivals, &out.Arrivals)
	show(q.joins, &out.Joins)
	return out, err
}

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) ([]string, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	var names []string
	for i := range slots {
		w, err := load(b.table.word(i))
		if err != nil {
			return nil, err
		}
		if vacant(w) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := b.update(ctx, i, nil); err != nil {
			return nil, err
		}
		s, err := b.read(i)
		if err != nil {
			return nil, err
		}
		for _, q := range s.queues {
			if name, ok := strings.CutPrefix(q.name, b.prefix); ok && name != "" {
				names = append(names, name)
			}
		}
	}
	return names, nil
}
