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
	deps    []string // if not granted: the paths of the nodes that it waits for
	over    *keptEnd // if kept nodes are among them: the first to expire; nil: none
	seen    int64    // the zxid of the last change that the answer takes into account
}

// check says whether the request holds, or what it waits for. If its node is gone its path is empty
// afterwards.
func (s *session) check(ctx context.Context, req *ownRequest) (a answer, err error) {
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
	if v.refused != nil {
		return a, s.withdraw(ctx, req, v.refused)
	}
	at, there := v.place[own]
	if !there { // it was removed by hand; the request arrives again
		s.owned.remove(req.path)
		s.b.mu.Lock()
		req.path, req.broken = "", false
		s.b.mu.Unlock()
		return a, nil
	}
	ahead := driver.Queue{Joins: v.q.Joins, Arrivals: v.q.Arrivals[:at]}
	_, refused := ahead.Admit(req.OwnRequest.Request)
	if a.granted = refused == nil && v.granted > at; a.granted {
		return a, nil
	}
	swept, next, err := s.sweep(ctx, req.Name, v.kept)
	switch {
	case err != nil:
		return a, err
	case swept:
		return s.check(ctx, req)
	case refused != nil:
		return a, s.withdraw(ctx, req, refused)
	}
	for _, e := range v.q.Depends(at) {
		a.deps = append(a.deps, dir+"/"+v.names[e])
		if isKept(v.names[e]) {
			a.over = next
		}
	}
	return a, nil
}

// withdraw removes a request that is refused, and returns the reason.
func (s *session) withdraw(ctx context.Context, req *ownRequest, reason error) error {
	s.b.mu.Lock()
	at := req.path
	s.b.mu.Unlock()
	err := s.deleteRequest(ctx, req, at, -1, false)
	if err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, conn.ErrEnded) {
		return err // its release removes it
	}
	s.b.mu.Lock()
	req.path = ""
	s.b.mu.Unlock()
	return reason
}

// wait returns when there is a reason to check the place again.
func (s *session) wait(ctx context.Context, req *ownRequest, a answer) error {
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
	var over <-chan time.Time // no server removes expired kept nodes
	var t *time.Timer
	if a.over != nil {
		t = time.NewTimer(s.untilOver(a.over.ms))
		defer t.Stop()
		over = t.C
	}
	for woken := false; !woken; {
		select {
		case <-req.wake:
			woken = true
		case <-over:
			left := s.untilOver(a.over.ms)
			if left <= 0 {
				return s.askTime(ctx, a.over.ms)
			}
			t.Reset(left)
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Ended():
			return conn.ErrEnded
		case <-s.b.life.Closed():
			return driver.ErrClosed
		}
	}
	if s.isGone(req) {
		return driver.ErrLost
	}
	return nil
}

// overPace is how often a request that waits for a time of the service computes the remainder
// anew: a proof may have shown since that the service's clock was set.
const overPace = 2 * time.Second

// untilOver returns how long to wait for that time of the service, at most overPace.
func (s *session) untilOver(ms int64) time.Duration {
	return min(time.Until(s.overAt(ms)), overPace)
}

func (s *session) isGone(req *ownRequest) bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return req.gone
}

// addWaiter adds the request to those that are woken when the directory changes. It has read the
// directory as it was at the zxid seen.
func (s *session) addWaiter(req *ownRequest, seen int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.directory(dirKey{name: req.Name})
	if len(d.waiters) == 0 {
		d.seen, d.recheckAt = seen, s.nextRecheck(time.Now())
	}
	d.waiters[req] = struct{}{}
}

// removeWaiter undoes addWaiter.
func (s *session) removeWaiter(req *ownRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := dirKey{name: req.Name}
	d := s.directory(key)
	delete(d.waiters, req)
	s.dropUnused(key, d)
}
