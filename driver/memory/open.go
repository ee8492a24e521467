package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func init() { driver.Register("memory", fromURL) }

// fromURL opens memory:name and memory: .
func fromURL(_ context.Context, c driver.Config) (driver.Backend, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	if c.URL.User != nil || c.URL.Host != "" || c.URL.Path != "" {
		return nil, fmt.Errorf("%w URL: want memory:name for a space that the process shares by name, or memory: for a space of its own, "+
			"without user, host or path", driver.ErrInvalid)
	}
	b, err := openNamed(c.URL.Opaque, c.Prefix)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// openNamed returns a client of the space with the name, or of a space of its own if the name is
// empty.
func openNamed(name, prefix string) (*Backend, error) {
	if name == "" {
		return New(Options{Prefix: prefix})
	}
	named.Lock()
	defer named.Unlock()
	s := named.spaces[name]
	if s == nil {
		s = &namedSpace{}
	}
	b, err := New(Options{Space: &s.Space, Prefix: prefix})
	if err != nil {
		return nil, err
	}
	named.spaces[name] = s
	s.clients++
	b.onClose = func() {
		named.Lock()
		s.clients--
		named.Unlock()
		s.forget(name)
	}
	return b, nil
}

// named are the spaces with a name. Its mutex is locked before that of a space.
var named = struct {
	sync.Mutex
	spaces map[string]*namedSpace
}{spaces: map[string]*namedSpace{}}

// namedSpace is a space with a name.
type namedSpace struct {
	Space
	clients int
	timer   *time.Timer // for the next call of forget; nil until one was needed
}

// forget removes the space once no client has it open and every fixed hold has ended.
func (s *namedSpace) forget(name string) {
	named.Lock()
	defer named.Unlock()
	if s.clients > 0 || named.spaces[name] != s {
		return
	}
	switch left := s.left(time.Now()); {
	case left <= 0:
		delete(named.spaces, name)
	case s.timer == nil:
		s.timer = time.AfterFunc(left, func() { s.forget(name) })
	default:
		s.timer.Reset(left)
	}
}
