// Package memory is the driver for locks within one process: tests, and programs that do not need a
// service yet.
//
// It is also the driver to read first. The contract of package driver needs little more than this:
// a queue under each name, the rule of [driver.Queue] to say who holds, and somebody who wakes the
// waiter that it names.
//
// # URLs
//
// "memory:name" opens a client of the space with that name, which all clients of the process that
// open it share, and which is forgotten when the last of them is closed and no fixed hold stands
// any more. "memory:" opens a client of a space of its own. Names of spaces are compared as
// written. There are no parameters beyond those that every URL has.
package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func init() { driver.Register("memory", fromURL) }

// Options are the options of [New]. The zero value makes a client of a space of its own.
type Options struct {
	// the space whose queues the client shares with every other client of it; nil: a new one, which
	// nobody else can reach
	Space *Space

	Prefix string // before every name in the space
}

// New returns a new client, which has to be closed.
func New(o Options) (*Backend, error) {
	s := o.Space
	if s == nil {
		s = new(Space)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serial == 0 {
		s.serial = serials.Add(1)
		s.queues, s.requests = map[string]*queue{}, map[driver.ID]*request{}
	}
	return &Backend{space: s, prefix: o.Prefix, forget: func() {}}, nil
}

// named are the spaces with a name. Its mutex comes before that of a space where both are held.
var named = struct {
	sync.Mutex
	spaces map[string]*namedSpace
}{spaces: map[string]*namedSpace{}}

type namedSpace struct {
	Space
	clients int
	timer   *time.Timer // of the next free; nil until one was needed
}

// free forgets the space once no client has it open and the time of every fixed hold is over.
func (s *namedSpace) free(name string) {
	named.Lock()
	defer named.Unlock()
	if s.clients > 0 || named.spaces[name] != s {
		return
	}
	switch left := s.left(time.Now()); {
	case left <= 0:
		delete(named.spaces, name)
	case s.timer == nil:
		s.timer = time.AfterFunc(left, func() { s.free(name) })
	default:
		s.timer.Reset(left)
	}
}

// fromURL opens memory: and memory:name.
func fromURL(_ context.Context, c driver.Config) (driver.Backend, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	if c.URL.User != nil || c.URL.Host != "" || c.URL.Path != "" {
		return nil, fmt.Errorf("%w URL: want memory:name, which the process shares by name, or memory: for a space of its own, "+
			"without user, host or path", driver.ErrInvalid)
	}
	name := c.URL.Opaque
	if name == "" {
		b, err := New(Options{Prefix: c.Prefix})
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	named.Lock()
	defer named.Unlock()
	s := named.spaces[name]
	if s == nil {
		s = &namedSpace{}
		named.spaces[name] = s
	}
	b, err := New(Options{Space: &s.Space, Prefix: c.Prefix})
	if err != nil {
		return nil, err
	}
	s.clients++
	b.forget = func() {
		named.Lock()
		s.clients--
		named.Unlock()
		s.free(name)
	}
	return b, nil
}
