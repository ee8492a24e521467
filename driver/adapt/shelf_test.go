package adapt_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

// shelf is a service in memory: the members of the lock of each name, by its own clock. Clients
// that do not share it ask for Exclusive holds only, so that a lock has one member.
type shelf struct {
	outlives bool // holds stay when their client is closed
	fences   bool // holds have tokens

	mu       sync.Mutex
	holds    map[string][]held
	dead     map[driver.ID]time.Time
	tokens   map[string]driver.Token // the last one of each name
	watchers map[string]map[*func()]bool
}

type held struct {
	r     driver.Request
	by    *client
	since time.Time
	until time.Time
	token driver.Token
}

func newShelf(outlives bool) *shelf {
	return &shelf{
		outlives: outlives, holds: map[string][]held{}, dead: map[driver.ID]time.Time{},
		tokens: map[string]driver.Token{}, watchers: map[string]map[*func()]bool{},
	}
}

// client is a connection to the shelf: the Calls. gate, if it is set, is called before and after
// each call is executed; a call fails with its error.
type client struct {
	s *shelf

	mu    sync.Mutex
	gate  func(ctx context.Context, executed bool) error
	tries []driver.Request // those that were sent
	calls int

	underWay int
	atClose  func(underWay int) // called when the connection ends
}

// wakingClient is a client that learns of releases.
type wakingClient struct{ *client }

// fencingClient is one whose holds have tokens.
type fencingClient struct{ wakingClient }

// members makes a client a Sharer.
type members struct{ of *client }

func (m members) Members(ctx context.Context, name string) (es []*driver.Entry, err error) {
	err = m.of.do(ctx, func() error {
		for _, h := range m.of.s.at(name) {
			e := &driver.Entry{Request: h.r, Age: time.Since(h.since), Left: time.Until(h.until)}
			if m.of.s.fences {
				e.Token = h.token
			}
			es = append(es, e)
		}
		return nil
	})
	return es, err
}

// do executes a call.
func (c *client) do(ctx context.Context, f func() error) error {
	c.mu.Lock()
	c.calls++
	c.underWay++
	gate := c.gate
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.underWay--
	}()
	if gate != nil {
		if err := gate(ctx, false); err != nil {
			return err
		}
	}
	c.s.mu.Lock()
	err := f()
	c.s.mu.Unlock()
	if gate != nil {
		if err := gate(ctx, true); err != nil {
			return err
		}
	}
	return err
}

// at returns the members of the name, and removes those that have expired.
func (s *shelf) at(name string) []held {
	s.holds[name] = slices.DeleteFunc(s.holds[name], func(h held) bool { return !time.Now().Before(h.until) })
	return s.holds[name]
}

// of returns the hold of the request; nil if it has none.
func (s *shelf) of(r driver.Request) *held {
	all := s.at(r.Name)
	for i := range all {
		if all[i].r.ID == r.ID {
			return &all[i]
		}
	}
	return nil
}

func (c *client) Try(ctx context.Context, r driver.Request) error {
	c.mu.Lock()
	c.tries = append(c.tries, r)
	c.mu.Unlock()
	return c.do(ctx, func() error { return c.s.try(c, r) })
}

// try decides by the rule of package driver.
func (s *shelf) try(c *client, r driver.Request) error {
	now := time.Now()
	if now.Before(s.dead[r.ID]) {
		return driver.ErrLost
	}
	if h := s.of(r); h != nil {
		h.until = later(h.until, now.Add(r.TTL))
		return nil
	}
	var q driver.Queue
	for _, h := range s.at(r.Name) {
		e := &driver.Entry{Request: h.r}
		e.Token = h.token
		if e.Join() {
			q.Joins = append(q.Joins, e)
		} else {
			q.Arrivals = append(q.Arrivals, e)
		}
		if h.r.Owner == r.ID {
			return driver.ErrLost // its hold goes on without it
		}
	}
	admitted, err := q.Admit(r)
	if err != nil {
		return err
	}
	token := admitted.Token
	if !r.Join() {
		q.Arrivals = append(q.Arrivals, &driver.Entry{Request: r})
		if q.Granted() < len(q.Arrivals) {
			return s.held(r)
		}
		s.tokens[r.Name]++
		token = s.tokens[r.Name]
	}
	s.holds[r.Name] = append(s.holds[r.Name], held{r: r, by: c, since: now, until: now.Add(r.TTL), token: token})
	return nil
}

// held is the answer to a request that others block.
func (s *shelf) held(r driver.Request) error {
	var e *adapt.HeldError
	for _, h := range s.at(r.Name) {
		if r.Mode == driver.Shared && h.r.Mode == driver.Shared {
			continue
		}
		if e == nil {
			e = &adapt.HeldError{By: driver.HeldError{Label: h.r.Label, Age: time.Since(h.since)}}
		}
		e.Left = max(e.Left, time.Until(h.until))
	}
	return e
}

func (c fencingClient) TryFenced(ctx context.Context, r driver.Request) (token driver.Token, err error) {
	c.mu.Lock()
	c.tries = append(c.tries, r)
	c.mu.Unlock()
	err = c.do(ctx, func() error {
		err := c.s.try(c.client, r)
		if h := c.s.of(r); h != nil {
			token = h.token
		}
		return err
	})
	return token, err
}

func (c fencingClient) Holder(ctx context.Context, name string) (*driver.Entry, error) {
	e, err := c.client.Holder(ctx, name)
	if e != nil {
		c.s.mu.Lock()
		e.Token = c.s.tokens[name]
		c.s.mu.Unlock()
	}
	return e, err
}

func (c *client) Extend(ctx context.Context, r driver.Request, ttl time.Duration) error {
	return c.do(ctx, func() error {
		h := c.s.of(r)
		if h == nil {
			return driver.ErrLost
		}
		h.until = later(h.until, time.Now().Add(ttl))
		return nil
	})
}

func (c *client) Release(ctx context.Context, r driver.Request, after time.Duration) error {
	return c.do(ctx, func() error {
		if r.Uncertain {
			c.s.dead[r.ID] = time.Now().Add(r.TTL)
		}
		h := c.s.of(r)
		if h == nil {
			return driver.ErrLost
		}
		if after > 0 {
			h.until = time.Now().Add(after)
			return nil
		}
		c.s.free(r.Name, func(h held) bool { return h.r.ID == r.ID })
		return nil
	})
}

// free removes members of a name.
func (s *shelf) free(name string, which func(held) bool) {
	s.holds[name] = slices.DeleteFunc(s.holds[name], which)
	for wake := range s.watchers[name] {
		go (*wake)()
	}
}

func (c *client) Holder(ctx context.Context, name string) (e *driver.Entry, err error) {
	err = c.do(ctx, func() error {
		for _, h := range c.s.at(name) {
			e = &driver.Entry{Request: h.r, Age: time.Since(h.since), Left: time.Until(h.until)}
		}
		return nil
	})
	return e, err
}

func (c wakingClient) Watch(ctx context.Context, name string, ready, wake func()) error {
	err := c.do(ctx, func() error {
		if c.s.watchers[name] == nil {
			c.s.watchers[name] = map[*func()]bool{}
		}
		c.s.watchers[name][&wake] = true
		return nil
	})
	defer func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if delete(c.s.watchers[name], &wake); len(c.s.watchers[name]) == 0 {
			delete(c.s.watchers, name)
		}
	}()
	if err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return ctx.Err()
}

// close ends the connection.
func (c *client) close() error {
	c.mu.Lock()
	atClose, underWay := c.atClose, c.underWay
	c.mu.Unlock()
	if atClose != nil {
		atClose(underWay)
	}
	if c.s.outlives {
		return nil
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for name := range c.s.holds {
		c.s.free(name, func(h held) bool { return h.by == c })
	}
	return nil
}

// watched returns how many watches there are.
func (s *shelf) watched() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ws := range s.watchers {
		n += len(ws)
	}
	return n
}

// holder returns the ID that has the lock, or one of those that share it; zero: none has it.
func (s *shelf) holder(name string) driver.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.at(name) {
		return h.r.ID
	}
	return driver.ID{}
}

// has returns for how long the request has the lock; 0: it does not.
func (s *shelf) has(r driver.Request) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.of(r); h != nil {
		return time.Until(h.until)
	}
	return 0
}

// sent returns how many calls the client has made.
func (c *client) sent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// setGate sets the gate.
func (c *client) setGate(gate func(ctx context.Context, executed bool) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate = gate
}

// hang lets calls hang until heal, before they are executed or after that.
func (c *client) hang(after bool) (heal func()) {
	healed := make(chan struct{})
	c.setGate(func(ctx context.Context, executed bool) error {
		if executed != after {
			return nil
		}
		select {
		case <-healed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return func() {
		c.setGate(nil)
		close(healed)
	}
}

var errDown = errors.New("the shelf is down")

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
