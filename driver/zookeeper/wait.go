package zookeeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// hall is where the requests of one session under one name look and wait. One listing serves all
// who asked before it was sent, since it shows all that had been created by then; one of them is
// under way at a time. s.mu guards it.
type hall struct {
	next    *listing           // for those who ask now; it is not sent yet; nil: nobody asks
	busy    bool               // somebody sees to the listings
	waiters map[*mine]struct{} // who sleeps
	// all of those have looked since the directory was so; the zxid of its last change
	known int64
	due   time.Time // when it is looked at next, if nothing happens
}

// hallKey says what a listing shows: a name as this session's server sees it, or as the leader
// does.
type hallKey struct {
	name   string
	synced bool
}

// listing is one look at a directory.
type listing struct {
	s        *session
	name     string
	done     chan struct{} // closed when the rest is set
	children []string
	version  int32 // of the directory's data; -1: there is no directory
	changed  int64 // the zxid of the last change of its children
	err      error

	once sync.Once
	v    *view
	bad  error
}

// view is what a listing says, worked out once for all who wait for it.
type view struct {
	q       driver.Queue
	granted int
	place   map[string]int           // among the strangers, by the node's name
	names   map[*driver.Entry]string // of nodes
	byID    map[driver.ID][]*node    // in order of arrival
}

// list returns a listing that is sent after now, of what stands there now if synced.
func (s *session) list(ctx context.Context, name string, synced bool) (*listing, error) {
	key := hallKey{name, synced}
	s.mu.Lock()
	h := s.hall(key)
	if h.next == nil {
		h.next = &listing{s: s, name: name, done: make(chan struct{})}
	}
	l := h.next
	if !h.busy {
		h.busy = true
		go s.serve(key, h)
	}
	s.mu.Unlock()
	select {
	case <-l.done:
		return l, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ended:
		return nil, errEnded
	case <-s.b.stop:
		return nil, driver.ErrClosed
	}
}

// hall returns a hall, and opens it. s.mu is held.
func (s *session) hall(key hallKey) *hall {
	h := s.halls[key]
	if h == nil {
		h = &hall{waiters: map[*mine]struct{}{}}
		s.halls[key] = h
	}
	return h
}

// tidy closes a hall that is empty. s.mu is held.
func (s *session) tidy(key hallKey, h *hall) {
	if !h.busy && h.next == nil && len(h.waiters) == 0 {
		delete(s.halls, key)
	}
}

// serve sends one listing after the other for as long as somebody asks.
func (s *session) serve(key hallKey, h *hall) {
	for {
		free, err := s.reading(s.b.ctx) // who comes while it waits for that is served too
		s.mu.Lock()
		l := h.next
		h.next = nil
		if h.busy = l != nil; !h.busy {
			s.tidy(key, h)
		}
		s.mu.Unlock()
		if l != nil {
			if err == nil && key.synced {
				err = s.sync(s.b.ctx, s.b.dir(key.name))
			}
			if err == nil {
				err = l.read(s.b.ctx)
			}
			l.err = err
			close(l.done)
		}
		free()
		if l == nil {
			return
		}
	}
}

// reads is how many of a session's listings and watches are under way at a time: after a reconnect
// all who wait come at once, and nobody else should stand behind all of them.
const reads = 64

// reading takes part in what is bounded by that, until free is called.
func (s *session) reading(ctx context.Context) (free func(), err error) {
	select {
	case s.reads <- struct{}{}:
		return func() { <-s.reads }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.ended:
		err = errEnded
	case <-s.b.stop:
		err = driver.ErrClosed
	}
	return func() {}, err
}

// read lists the directory. One that is not there has no children, and version -1.
func (l *listing) read(ctx context.Context) error {
	var stat *zk.Stat
	var children []string
	err := l.s.call(ctx, func(c *zk.Conn) (err error) {
		children, stat, err = c.Children(l.s.b.dir(l.name))
		return err
	}, nil)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		l.version = -1
		return nil
	case err != nil:
		return err
	}
	l.children, l.version, l.changed = children, stat.Version, stat.Pzxid
	return nil
}

// nodes returns the requests that a listing shows, in order of arrival. The caller may change them.
func (s *session) nodes(ctx context.Context, name string, synced bool) ([]*node, error) {
	l, err := s.list(ctx, name, synced)
	if err != nil {
		return nil, err
	}
	return s.parse(ctx, name, l.children)
}

// view returns what the listing says.
func (l *listing) view() (*view, error) {
	l.once.Do(func() {
		ns, err := l.s.parse(l.s.b.ctx, l.name, l.children)
		if err != nil {
			l.bad = err
			return
		}
		v := &view{q: queueOf(ns), place: map[string]int{}, names: map[*driver.Entry]string{}, byID: map[driver.ID][]*node{}}
		for _, n := range ns {
			v.names[&n.entry] = n.name
			v.byID[n.entry.ID] = append(v.byID[n.entry.ID], n)
		}
		for i, e := range v.q.Arrivals {
			v.place[v.names[e]] = i
		}
		v.granted = v.q.Granted()
		l.v = v
	})
	return l.v, l.bad
}

// answer is what a request learns when it looks.
type answer struct {
	granted bool
	deps    []string // else: the paths of what it waits for
	seen    int64    // the zxid of the last change that this rests on
}

// look says whether the request holds or what it waits for. If its node is gone it has no path any
// more.
func (s *session) look(ctx context.Context, m *mine) (a answer, err error) {
	dir, own := s.b.dir(m.r.Name), path.Base(m.path)
	l, err := s.list(ctx, m.r.Name, false)
	if err != nil {
		return a, err
	}
	a.seen = l.changed
	if first(l.children, own) {
		a.granted = true
		return a, nil
	}
	v, err := l.view()
	if err != nil {
		return a, err
	}
	at, there := v.place[own]
	if !there { // somebody removed it; it comes again, as who has just arrived
		s.b.mu.Lock()
		m.path, m.broken = "", false
		s.b.mu.Unlock()
		return a, nil
	}
	ahead := driver.Queue{Joins: v.q.Joins, Arrivals: v.q.Arrivals[:at]}
	if _, err := ahead.Admit(m.r); err != nil {
		return a, s.withdraw(ctx, m, err)
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

// sleep returns when there is a reason to look.
func (s *session) sleep(ctx context.Context, m *mine, a answer) error {
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
	s.enter(m, a.seen)
	defer s.exit(m)
	for _, at := range a.deps {
		s.await(ctx, at, m.wake)
		defer s.unawait(at, m.wake)
	}
	select {
	case <-m.wake:
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

// enter makes the request one of those who wait, on what it saw.
func (s *session) enter(m *mine, seen int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hall(hallKey{name: m.r.Name})
	if len(h.waiters) == 0 {
		h.known, h.due = seen, s.nextCheck(time.Now())
	}
	h.waiters[m] = struct{}{}
}

// exit ends that.
func (s *session) exit(m *mine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := hallKey{name: m.r.Name}
	h := s.hall(key)
	delete(h.waiters, m)
	s.tidy(key, h)
}

// No message is trusted to arrive for ever: each directory where somebody waits is looked at once
// in three timeouts of the session, recheck at most and half of that at least, and if it is not as
// it was all who wait there look. A client does not look at more than one directory in each
// checkEvery, so those of a great many are looked at less often.
const (
	recheck    = 30 * time.Second
	checkEvery = 100 * time.Millisecond
)

// nextCheck returns when a directory that was as it should be now is looked at again.
func (s *session) nextCheck(now time.Time) time.Time {
	d := min(recheck, 3*s.timeout)
	return now.Add(d/2 + rand.N(d/2))
}

// checkSoon looks, in the background, at the directories whose time has come, at most at so many.
func (s *session) checkSoon(now time.Time, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.checking {
		return
	}
	var due []hallKey
	for key, h := range s.halls {
		if len(h.waiters) > 0 && now.After(h.due) && len(due) < most {
			due = append(due, key)
		}
	}
	if len(due) == 0 {
		return
	}
	s.checking = true
	s.b.tasks.Go(func() {
		for _, key := range due {
			if s.check(key) != nil { // the next look at the session tries again
				break
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.checking = false
	})
}

// check looks at a directory, and wakes those who wait there if it changed after they had looked.
func (s *session) check(key hallKey) error {
	var changed int64
	stat, err := s.stat(s.b.ctx, s.b.dir(key.name))
	if err == nil {
		changed = stat.Pzxid
	} else if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.halls[key]
	if h == nil {
		return nil
	}
	h.due = s.nextCheck(time.Now())
	if h.known != changed {
		h.known = changed
		for m := range h.waiters {
			poke(m.wake)
		}
	}
	return nil
}
