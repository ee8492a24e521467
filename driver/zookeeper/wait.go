package zookeeper

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// answer is what a request learns when it checks its place.
type answer struct {
	granted bool
	deps    []string // else: the paths of what it waits for
	seen    int64    // the zxid of the last change that this rests on
}

// check says whether the request holds, or what it waits for. If its node is gone it has no path
// any more.
func (s *session) check(ctx context.Context, req *request) (a answer, err error) {
	dir, own := s.b.dir(req.Name), path.Base(req.path)
	l, err := s.list(ctx, req.Name, false)
	if err != nil {
		return a, err
	}
	a.seen = l.changed
	if isFirst(l.children, own) {
		a.granted = true
		return a, nil
	}
	if before, ok := predecessor(l.children, own); ok {
		a.deps = []string{dir + "/" + before}
		return a, nil
	}
	v, err := l.view()
	if err != nil {
		return a, err
	}
	at, there := v.place[own]
	if !there { // somebody removed it; it comes again, as who has just arrived
		s.b.mu.Lock()
		req.path, req.broken = "", false
		s.b.mu.Unlock()
		return a, nil
	}
	ahead := driver.Queue{Joins: v.q.Joins, Arrivals: v.q.Arrivals[:at]}
	if _, err := ahead.Admit(req.Request.Request); err != nil {
		return a, s.withdraw(ctx, req, err)
	}
	if a.granted = v.granted > at; a.granted {
		return a, nil
	}
	for _, e := range v.q.Depends(at) {
		a.deps = append(a.deps, dir+"/"+v.names[e])
	}
	return a, nil
}

// withdraw removes the request, which is refused for that reason.
func (s *session) withdraw(ctx context.Context, req *request, reason error) error {
	s.b.mu.Lock()
	at := req.path
	s.b.mu.Unlock()
	err := s.deleteRequest(ctx, req, at, -1, false)
	if err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, conn.ErrEnded) {
		return err // it goes on in the background
	}
	s.b.mu.Lock()
	req.path = ""
	s.b.mu.Unlock()
	return reason
}

// wait returns when there is a reason to check the place again.
func (s *session) wait(ctx context.Context, req *request, a answer) error {
	select {
	case <-req.wake: // from before the check
	default:
	}
	if s.isGone(req) {
		return driver.ErrLost
	}
	s.addWaiter(req, a.seen)
	defer s.removeWaiter(req)
	for _, at := range a.deps {
		s.watch(ctx, at, req)
		defer s.unwatch(at, req)
	}
	select {
	case <-req.wake:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Ended():
		return conn.ErrEnded
	case <-s.b.life.Closed():
		return driver.ErrClosed
	}
	if s.isGone(req) {
		return driver.ErrLost
	}
	return nil
}

func (s *session) isGone(req *request) bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return req.gone
}

// addWaiter adds the request to those that are woken when the directory changes, which it has read
// as it was at the zxid seen.
func (s *session) addWaiter(req *request, seen int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.directory(dirKey{name: req.Name})
	if len(d.waiters) == 0 {
		d.seen, d.recheckAt = seen, s.nextRecheck(time.Now())
	}
	d.waiters[req] = struct{}{}
}

// removeWaiter ends that.
func (s *session) removeWaiter(req *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := dirKey{name: req.Name}
	d := s.directory(key)
	delete(d.waiters, req)
	s.dropUnused(key, d)
}
