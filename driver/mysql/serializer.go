package mysql

import (
	"context"
	"slices"
	"sync"

	"github.com/dlock-go/dlock/driver"
)

// serializer runs one call at a time for each name. On the server several would only wait for each
// other, each with a connection.
type serializer struct {
	mu    sync.Mutex
	names map[string]*backlog
}

// backlog are the calls for a name that wait for the one under way. Urgent ones come first.
type backlog struct{ urgent, ordinary []*call }

// add appends a call to those of the name. It reports whether none was under way: then the caller
// makes somebody run them.
func (s *serializer) add(name string, c *call) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.names[name]
	if l == nil {
		l, first = &backlog{}, true
		s.names[name] = l
	}
	if c.urgent {
		l.urgent = append(l.urgent, c)
	} else {
		l.ordinary = append(l.ordinary, c)
	}
	return first
}

// next takes the next call of the name; nil: there is none.
func (s *serializer) next(name string) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.names[name]
	from := &l.urgent
	if len(*from) == 0 {
		from = &l.ordinary
	}
	if len(*from) == 0 {
		delete(s.names, name)
		return nil
	}
	c := (*from)[0]
	*from = slices.Delete(*from, 0, 1)
	return c
}

// send sends a call for a name, and returns when it is answered, or at the end of ctx, or when
// closed is. What was sent by then goes on alone.
func (b *Backend) send(ctx context.Context, closed <-chan struct{}, name string, urgent bool, c *call) error {
	c.urgent = urgent
	if b.calls.add(name, c) {
		go b.runCalls(name)
	}
	err := c.wait(ctx, b.pool, closed)
	if c.doubt.Load() > 0 {
		b.wakeName(name) // an answer that names who was granted may be lost
	}
	return err
}

// runCalls runs the calls for a name, one after the other.
func (b *Backend) runCalls(name string) {
	for c := b.calls.next(name); c != nil; c = b.calls.next(name) {
		c.run(b.pool, true)
		if c.left.Load() && c.doubt.Load() > 0 {
			b.wakeName(name) // its caller woke them before the answer came
		}
	}
}

// sendAlone sends a call that concerns no single name.
func (b *Backend) sendAlone(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.life.Over() {
		return driver.ErrClosed
	}
	go c.run(b.pool, false)
	return c.wait(ctx, b.pool, b.life.Closed())
}
