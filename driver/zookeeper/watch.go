package zookeeper

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// watch is a watch on one path, shared by all requests that wait for it. The library cannot remove
// a watch, so it stays without waiters, for the next one. So the watches at a server are bounded by
// the requests in its queues, however many come and go behind them.
type watch struct {
	waiters map[*ownRequest]struct{} // the requests that it wakes
}

// watch wakes a request when the node changes or is gone, or when that is in doubt. It returns when
// the watch is set, or ctx ends.
func (s *session) watch(ctx context.Context, at string, req *ownRequest) {
	s.mu.Lock()
	if w := s.watches[at]; w != nil {
		w.waiters[req] = struct{}{}
		s.mu.Unlock()
		return
	}
	w := &watch{waiters: map[*ownRequest]struct{}{req: {}}}
	s.watches[at] = w
	s.mu.Unlock()
	failed := func(err error) {
		if err == nil {
			return
		}
		s.mu.Lock() // there is no watch: its waiters check their places
		defer s.mu.Unlock()
		if s.watches[at] == w {
			s.fire(at)
		}
	}
	free, err := s.startRead(ctx)
	if err != nil {
		failed(err)
		return
	}
	err = s.Watch(ctx, at, failed)
	free()
	if underWay := ctx.Err() != nil && errors.Is(err, ctx.Err()) && !kit.WasNotSent(err); !underWay {
		failed(err)
	}
}

// unwatch undoes watch for one waiter.
func (s *session) unwatch(at string, req *ownRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches[at]; w != nil {
		delete(w.waiters, req)
	}
}

// fire wakes the requests that watch a path. s.mu is held.
func (s *session) fire(at string) {
	if w := s.watches[at]; w != nil {
		delete(s.watches, at)
		for req := range w.waiters {
			req.wake.Set()
		}
	}
}

// fireAll wakes all requests that watch a path. s.mu is held.
func (s *session) fireAll() {
	for at := range s.watches {
		s.fire(at)
	}
}
