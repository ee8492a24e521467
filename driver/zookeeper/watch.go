package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// watch is a watch on one path, shared by all that wait for it. The library cannot remove one, so
// it stays when nobody waits any more, for who comes next: what stands at a server is bounded by
// the requests that stand in its queues, however many come and go behind them.
type watch struct {
	wakes map[chan struct{}]struct{} // of those who wait
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// await has wake poked when the node changes or is gone, or when that is in doubt. It returns when
// the watch stands, or ctx ends.
func (s *session) await(ctx context.Context, at string, wake chan struct{}) {
	s.mu.Lock()
	if w := s.watches[at]; w != nil {
		w.wakes[wake] = struct{}{}
		s.mu.Unlock()
		return
	}
	w := &watch{wakes: map[chan struct{}]struct{}{wake: {}}}
	s.watches[at] = w
	s.mu.Unlock()
	settle := func(err error) {
		if err == nil {
			return
		}
		s.mu.Lock() // there is no watch; who waits looks again
		defer s.mu.Unlock()
		if s.watches[at] == w {
			s.fire(at)
		}
	}
	free, err := s.reading(ctx)
	if err != nil {
		settle(err)
		return
	}
	err = s.call(ctx, func(c *zk.Conn) error {
		_, _, _, err := c.GetW(at) // its channel is not needed: the line hears everything
		return err
	}, settle)
	free()
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) { // else it is under way yet
		settle(err)
	} else if unsent := (notSent{}); errors.As(err, &unsent) {
		settle(err)
	}
}

// unawait ends that.
func (s *session) unawait(at string, wake chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches[at]; w != nil {
		delete(w.wakes, wake)
	}
}

// fire wakes those who wait for a path. s.mu is held.
func (s *session) fire(at string) {
	if w := s.watches[at]; w != nil {
		delete(s.watches, at)
		for wake := range w.wakes {
			poke(wake)
		}
	}
}

// fireAll wakes all who wait. s.mu is held.
func (s *session) fireAll() {
	for at := range s.watches {
		s.fire(at)
	}
}
