package memory

import (
	"context"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend]. A waiting request always has its whole TTL left.
func (b *Backend) Inspect(_ context.Context, name string) (driver.Queue, error) {
	s := b.begin()
	if s == nil {
		return driver.Queue{}, driver.ErrClosed
	}
	defer s.mu.Unlock()
	now := time.Now()
	q := s.current(b.prefix+name, now)
	if q == nil {
		return driver.Queue{}, nil
	}
	show := func(es []*driver.Entry) []*driver.Entry {
		shown := make([]*driver.Entry, len(es))
		for i, e := range es {
			r, c := s.requests[e.ID], *e
			c.Name, c.Age, c.Left = name, now.Sub(r.arrived), e.TTL
			if r.granted() {
				c.Left = r.expires.Sub(now)
			}
			shown[i] = &c
		}
		return shown
	}
	return driver.Queue{Joins: show(q.Joins), Arrivals: show(q.Arrivals)}, nil
}

// Break implements [driver.Breaker].
func (b *Backend) Break(_ context.Context, name string, t driver.Token, force bool) error {
	s := b.begin()
	if s == nil {
		return driver.ErrClosed
	}
	defer s.mu.Unlock()
	now := time.Now()
	q := s.current(b.prefix+name, now)
	if q == nil {
		return driver.ErrNotHeld
	}
	err := driver.ErrNotHeld
	for _, e := range q.Holders() {
		if e.Token != t {
			continue
		}
		err = nil
		if e.Broken = true; force {
			s.lose(q, s.requests[e.ID], now)
		}
	}
	s.evaluate(q, now)
	return err
}

// List implements [driver.Lister]: the names that begin with the client's prefix, without it.
func (b *Backend) List(context.Context) ([]string, error) {
	s := b.begin()
	if s == nil {
		return nil, driver.ErrClosed
	}
	defer s.mu.Unlock()
	now := time.Now()
	var names []string
	for name := range s.queues {
		if own, ok := strings.CutPrefix(name, b.prefix); ok && s.current(name, now) != nil {
			names = append(names, own)
		}
	}
	return names, nil
}
