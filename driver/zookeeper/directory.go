package zookeeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// directory is shared by the requests of one session under one name. One listing serves all callers
// that asked before it was sent, since it shows everything that was created by then. One listing is
// under way at a time. The session's mu guards the directory.
type directory struct {
	next    *listing                 // shared by new callers, not sent yet; nil: none
	listing bool                     // serveListings runs
	waiters map[*ownRequest]struct{} // the requests that wait for an event

	// seen is the zxid of the directory's last change that all waiters have taken into account.
	seen      int64
	recheckAt time.Time // when it is read next, if no event comes
}

// dirKey says what a listing shows: a name as this session's server has it, or, if synced, as the
// leader does.
type dirKey struct {
	name   string
	synced bool
}

// listing is one reading of a directory.
type listing struct {
	s        *session
	name     string
	done     chan struct{} // closed when the other fields are set
	children []string
	version  int32 // of the directory's data; -1: there is no directory
	changed  int64 // the zxid of the last change of its children
	err      error

	once    sync.Once
	v       *view
	viewErr error
}

// view is what a listing says, computed once for all callers that share it.
type view struct {
	q       driver.Queue
	granted int
	refused error                    // why no request may be granted; nil: it may
	place   map[string]int           // among the arrivals, by the node's name
	names   map[*driver.Entry]string // of nodes
	byID    map[driver.ID][]*node    // in order of arrival
	kept    []string                 // the names of the kept nodes
}

// list returns a listing that is sent after the call. If synced is set it shows what the leader has
// at the time of the call.
func (s *session) list(ctx context.Context, name string, synced bool) (*listing, error) {
	key := dirKey{name, synced}
	s.mu.Lock()
	d := s.directory(key)
	if d.next == nil {
		d.next = &listing{s: s, name: name, done: make(chan struct{})}
	}
	l := d.next
	if !d.listing {
		d.listing = true
		go s.serveListings(key, d)
	}
	s.mu.Unlock()
	select {
	case <-l.done:
		return l, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.Ended():
		return nil, conn.ErrEnded
	case <-s.b.life.Closed():
		return nil, driver.ErrClosed
	}
}

// directory returns a directory, and adds it if it is missing. s.mu is held.
func (s *session) directory(key dirKey) *directory {
	d := s.directories[key]
	if d == nil {
		d = &directory{waiters: map[*ownRequest]struct{}{}}
		s.directories[key] = d
	}
	return d
}

// dropUnused removes a directory that is not in use. s.mu is held.
func (s *session) dropUnused(key dirKey, d *directory) {
	if !d.listing && d.next == nil && len(d.waiters) == 0 {
		delete(s.directories, key)
	}
}

// serveListings sends one listing after the other for as long as callers ask for one.
func (s *session) serveListings(key dirKey, d *directory) {
	for {
		free, err := s.startRead(s.b.life.Context()) // callers that come meanwhile are served too
		s.mu.Lock()
		l := d.next
		d.next = nil
		if d.listing = l != nil; !d.listing {
			s.dropUnused(key, d)
		}
		s.mu.Unlock()
		if l != nil {
			if err == nil && key.synced {
				err = s.Sync(s.b.life.Context(), s.b.dir(key.name))
			}
			if err == nil {
				err = l.read()
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

// maxReads is how many listings and watches of a session are under way at a time. After a reconnect
// all waiters come at once, and no other call should queue behind all of them.
const maxReads = 64

// startRead waits until a read may be sent. The caller calls free when the read is answered.
func (s *session) startRead(ctx context.Context) (free func(), err error) {
	select {
	case s.reads <- struct{}{}:
		return func() { <-s.reads }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.Ended():
		err = conn.ErrEnded
	case <-s.b.life.Closed():
		err = driver.ErrClosed
	}
	return func() {}, err
}

// read lists the directory. One that does not exist has no children, and version -1.
func (l *listing) read() error {
	children, stat, err := l.s.AwaitChildren(l.s.b.dir(l.name))
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

// view returns what the listing says.
func (l *listing) view() (*view, error) {
	l.once.Do(func() {
		ns, err := l.s.parse(l.s.b.life.Context(), l.name, l.children)
		if err != nil {
			l.viewErr = err
			return
		}
		v := &view{refused: l.s.b.refusal(l.name, l.children, ns), q: queueOf(ns), place: map[string]int{}, names: map[*driver.Entry]string{}, byID: map[driver.ID][]*node{}}
		for _, n := range ns {
			v.names[&n.entry] = n.name
			v.byID[n.entry.ID] = append(v.byID[n.entry.ID], n)
			if n.kept {
				v.kept = append(v.kept, n.name)
			}
		}
		for i, e := range v.q.Arrivals {
			v.place[v.names[e]] = i
		}
		v.granted = v.q.Granted()
		l.v = v
	})
	return l.v, l.viewErr
}

// refusal returns an error if no request may be granted among these children.
func (b *Backend) refusal(name string, children []string, ns []*node) error {
	if wornOut(ns) {
		if err := b.layout.wornOut(name); err != nil {
			return err
		}
	}
	if len(children) == len(ns) {
		return nil
	}
	for _, child := range children {
		if _, ok := b.layout.parse(name, child); ok {
			continue
		}
		if err := b.layout.refuses(name, child); err != nil {
			return err
		}
	}
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

// parse makes requests of a name's children, in order of arrival.
func (s *session) parse(ctx context.Context, name string, children []string) (ns []*node, err error) {
	ns = make([]*node, 0, len(children))
	for _, child := range children {
		if n, ok := s.b.layout.parse(name, child); ok {
			ns = append(ns, n)
		}
	}
	if wornOut(ns) && s.b.layout.wornOut(name) == nil {
		if ns, err = s.readArrivals(ctx, s.b.dir(name), ns); err != nil {
			return nil, err
		}
	}
	sortNodes(ns)
	return ns, nil
}

// readArrivals reads when the requests that are not joins arrived, and returns the nodes that still
// exist.
func (s *session) readArrivals(ctx context.Context, dir string, ns []*node) ([]*node, error) {
	err := each(len(ns), func(i int) error {
		if !ns[i].arrives() {
			return nil
		}
		stat, err := s.Stat(ctx, dir+"/"+ns[i].name)
		if errors.Is(err, zk.ErrNoNode) {
			ns[i] = nil
			return nil
		}
		if err == nil {
			ns[i].czxid = stat.Czxid
		}
		return err
	})
	var there []*node
	for _, n := range ns {
		if n != nil {
			there = append(there, n)
		}
	}
	return there, err
}

// The driver does not rely on events alone. Each directory with waiters is read again after three
// session timeouts (at most recheck), less a random part of up to half of that. If it has changed,
// all waiters check their places. A client reads at most one directory in each recheckPace, so a
// great many directories are read less often.
const (
	recheck     = 30 * time.Second
	recheckPace = 100 * time.Millisecond
)

// nextRecheck returns when a directory that is up to date now is read again.
func (s *session) nextRecheck(now time.Time) time.Time {
	d := min(recheck, 3*s.Timeout)
	return now.Add(d/2 + rand.N(d/2))
}

// recheckSoon reads, in the background, at most that many of the directories whose time has come.
func (s *session) recheckSoon(now time.Time, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rechecking {
		return
	}
	var due []dirKey
	for key, d := range s.directories {
		if len(d.waiters) > 0 && now.After(d.recheckAt) && len(due) < most {
			due = append(due, key)
		}
	}
	if len(due) == 0 {
		return
	}
	s.rechecking = true
	s.b.life.Go(func() {
		for _, key := range due {
			if s.recheck(key) != nil { // monitor tries again
				break
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rechecking = false
	})
}

// recheck reads a directory, and wakes its waiters if it has a change that they have not seen.
func (s *session) recheck(key dirKey) error {
	var changed int64
	stat, err := s.Stat(s.b.life.Context(), s.b.dir(key.name))
	if err == nil {
		changed = stat.Pzxid
	} else if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.directories[key]
	if d == nil {
		return nil
	}
	d.recheckAt = s.nextRecheck(time.Now())
	if d.seen != changed {
		d.seen = changed
		for req := range d.waiters {
			req.wake.Set()
		}
	}
	return nil
}
