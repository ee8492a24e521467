package zookeeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// look reads the queue once, and says whether the request holds or what it waits for.
func (s *session) look(ctx context.Context, m *mine) (granted bool, deps []string, err error) {
	dir, own := s.b.dir(m.r.Name), path.Base(m.path)
	children, _, err := s.children(ctx, dir)
	if err != nil {
		return false, nil, err
	}
	if first(children, own) {
		return true, nil, nil
	}
	ns, err := s.parse(ctx, m.r.Name, children)
	if err != nil {
		return false, nil, err
	}
	names := map[*driver.Entry]string{}
	at, i := -1, 0
	for _, n := range ns {
		names[&n.entry] = n.name
		if n.entry.Join() {
			continue
		}
		if n.name == own {
			at = i
		}
		i++
	}
	if at < 0 { // somebody removed it; it comes again, as who has just arrived
		s.b.mu.Lock()
		m.path, m.broken = "", false
		s.b.mu.Unlock()
		return false, nil, nil
	}
	q := queueOf(ns)
	ahead := driver.Queue{Joins: q.Joins, Strangers: q.Strangers[:at]}
	if _, err := ahead.Admit(m.r); err != nil {
		return false, nil, s.withdraw(ctx, m, err)
	}
	if q.Granted() > at {
		return true, nil, nil
	}
	for _, e := range q.Depends(at) {
		deps = append(deps, dir+"/"+names[e])
	}
	return false, deps, nil
}

// withdraw removes the request, which is refused for that reason.
func (s *session) withdraw(ctx context.Context, m *mine, why error) error {
	s.b.mu.Lock()
	at := m.path
	s.b.mu.Unlock()
	err := s.delete(ctx, m, at, -1)
	if err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, errEnded) {
		return err // it goes on in the background
	}
	s.b.mu.Lock()
	m.path = ""
	s.b.mu.Unlock()
	return why
}

// recheck is how long a waiter sleeps at most, half of that at least: no message is trusted to arrive for ever.
const recheck = 30 * time.Second

// sleep returns when there is a reason to look.
func (s *session) sleep(ctx context.Context, m *mine, deps []string) error {
	select {
	case <-m.wake: // from before this look
	default:
	}
	s.b.mu.Lock()
	gone := m.gone
	s.b.mu.Unlock()
	if gone {
		return driver.ErrLost
	}
	for _, at := range deps {
		s.await(ctx, at, m.wake)
		defer s.unawait(at, m.wake)
	}
	t := time.NewTimer(recheck/2 + rand.N(recheck/2))
	defer t.Stop()
	select {
	case <-m.wake:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ended:
		return errEnded
	case <-s.b.stop:
		return driver.ErrClosed
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if m.gone {
		return driver.ErrLost
	}
	return nil
}
