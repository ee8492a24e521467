package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// find looks for the request after a create whose reply was lost. Of several nodes the first
// counts.
func (s *session) find(ctx context.Context, m *mine) error {
	nodes, err := s.strays(ctx, m.r)
	if err != nil || len(nodes) == 0 {
		return err
	}
	s.b.mu.Lock()
	m.path, m.token = nodes[0].at, driver.Token(nodes[0].czxid)
	if m.r.Join() {
		m.token = m.r.Token
	}
	s.b.mu.Unlock()
	return nil
}

// stray is a node that this session made for a request.
type stray struct {
	at    string
	czxid int64
}

// strays returns the nodes of the request that belong to this session. One of an earlier session
// has the same ID, and another owner.
func (s *session) strays(ctx context.Context, r driver.Request) ([]stray, error) {
	l, err := s.list(ctx, r.Name, true)
	if err != nil {
		return nil, err
	}
	v, err := l.view()
	if err != nil {
		return nil, err
	}
	var found []stray
	for _, n := range v.byID[r.ID] {
		at := s.b.dir(r.Name) + "/" + n.name
		stat, err := s.stat(ctx, at)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if stat.EphemeralOwner == s.id {
			found = append(found, stray{at, stat.Czxid})
		}
	}
	return found, nil
}

// sweepDelay is when the second look for strays comes: a create whose reply was lost may itself
// still be on its way.
const sweepDelay = 2 * time.Second

// sweepSoon removes, in the background, all nodes of the request but the one where it is known to
// stand: now, and after a delay.
func (s *session) sweepSoon(m *mine) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.closed {
		s.scourSoon(m.r)
		return
	}
	s.b.tasks.Go(func() {
		late := time.Now().Add(sweepDelay)
		for done := false; !done; {
			began := time.Now()
			ok := s.sweep(m)
			done = ok && began.After(late)
			wait := 50 * time.Millisecond
			if ok && !done {
				wait = time.Until(late) + time.Millisecond
			}
			if pause(s.b.ctx, wait) != nil {
				s.scourSoon(m.r)
				return
			}
			if s.isOver() {
				if s.own { // what it made went with it
					return
				}
				if next := s.again(); next != nil {
					s = next
				}
			}
		}
	})
}

// scourSoon is sweepSoon after Close, on a user's connection, which goes on: it removes all nodes
// of the request, in whichever session of that connection. It ends soon, whatever the servers
// answer.
func (s *session) scourSoon(r driver.Request) {
	if s.own {
		return
	}
	dir, began := s.b.dir(r.Name), time.Now()
	go func() {
		for wait := 20 * time.Millisecond; time.Since(began) < sweepDelay+2*s.timeout; wait = min(2*wait, time.Second) {
			late := time.Since(began) > sweepDelay
			_, err := s.conn.Sync(dir)
			var children []string
			if err == nil {
				children, _, err = s.conn.Children(dir)
			}
			for _, child := range children {
				if n, ok := parseNode(r.Name, child); ok && n.entry.ID == r.ID {
					s.clear(dir + "/" + child)
				}
			}
			if errors.Is(err, zk.ErrClosing) || late && (err == nil || errors.Is(err, zk.ErrNoNode)) {
				return
			}
			time.Sleep(wait)
		}
	}()
}

// again returns the session after one that is over, or nil if there is none now: a user's
// connection may come back with what the driver gave up, and what was not sent in one session may
// be in the next.
func (s *session) again() *session {
	now, err := s.b.some(s.b.ctx)
	if err != nil {
		return nil
	}
	return now
}

// sweep is one look for strays. It reports whether there are none left.
func (s *session) sweep(m *mine) bool {
	found, err := s.strays(s.b.ctx, m.r)
	if err != nil {
		return false
	}
	s.b.mu.Lock()
	at, gone := m.path, m.gone
	s.b.mu.Unlock()
	if at == "" && !gone { // its Acquire is about to look for itself
		return false
	}
	for _, f := range found {
		if f.at != at || gone {
			s.remove(f.at)
		}
	}
	return true
}
