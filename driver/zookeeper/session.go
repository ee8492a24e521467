package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// A session lasts 4/3 of the TTL of its leases, and at least 5/4 of the sum of that and a lag. The
// leader, which expires sessions, counts from the last sign of life that a follower reported. That
// sign is older than the proof of a lease by the lag (half a tick), and by the time between two
// signs: those of an idle session are an eighth of the timeout apart, and its monitor runs twenty
// times in a timeout. The rest is for the proof: 4/5 of the timeout, less the lag.
const (
	sessionShare = 4
	ttlShare     = 3
	signs        = 8  // of life, in a timeout
	looks        = 20 // runs of the monitor in a timeout
)

// timeoutFor returns the timeout of a session whose leases have that TTL.
func timeoutFor(ttl, lag time.Duration) time.Duration {
	return max((ttl*sessionShare+ttlShare-1)/ttlShare, ((ttl+lag)*5+3)/4)
}

// ttlOf returns the TTL that a session's timeout allows.
func ttlOf(timeout, lag time.Duration) time.Duration {
	return min(timeout*ttlShare/sessionShare, timeout*4/5-lag)
}

const (
	connectTimeout = 10 * time.Second // for a new session
	deleteTimeout  = 2 * time.Second  // of Close, for removing nodes on a user's connection
	idleTimeout    = time.Minute      // of a session without requests, except for the client's TTL
)

// session is one session with the ensemble, and the connection that carries it. The servers remove
// what it created when it ends.
type session struct {
	*conn.Session
	own    *conn.Conn // the driver's connection; nil: it is the user's
	b      *Backend
	ttl    time.Duration // of its leases, at most
	node   string        // the path of its own node
	owned  owned         // the nodes that the servers remove with it
	turn   chan struct{} // held by the goroutine that proves it
	reads  chan struct{} // has a token for each listing and watch under way
	writes *batcher
	over   <-chan struct{} // closed when the session or the client ends
	stop   func()          // closes it

	sweeper sweeper
	noticed kit.Signal // the notice node has an event

	pinged time.Time // when monitor last sent a sign of life

	mu          sync.Mutex
	watches     map[string]*watch
	directories map[dirKey]*directory
	rechecking  bool // recheckSoon is running
	proof       proof

	// guarded by b.mu
	audits   int // how often nodes were read after a break
	requests map[driver.ID]*ownRequest
	holds    []*ownRequest // the granted requests
	next     int           // the next hold to check
	busy     time.Time     // when it last had a request
}

// class says which requests share a session. A pool has several classes for each TTL. If one
// session has no room for the nodes of a class, further classes follow, each with an index that is
// greater by the size of the pool.
type class struct {
	ttl   time.Duration // of the session's leases, at most; 0: there is one session for all
	index int
}

// slot is a class's session, or the attempt to make one.
type slot struct {
	s    *session
	done chan struct{} // closed when the attempt has ended
	err  error
}

// sessionTTL returns the TTL of the sessions that serve requests of the given TTL: the client's own
// TTL, or a power of two of a second. It is at least the given TTL and less than twice as long, so
// a few sessions serve all TTLs.
func (b *Backend) sessionTTL(ttl time.Duration) time.Duration {
	if b.borrowed != nil || b.o.timeout > 0 {
		return 0
	}
	fit := time.Second
	for fit < ttl {
		fit *= 2
	}
	for fit/2 >= ttl && fit > time.Millisecond {
		fit /= 2
	}
	if own := b.o.ttl; ttl <= own && own <= fit {
		return own
	}
	return max(min(fit, b.caps.MaxTTL), b.caps.MinTTL)
}

// class returns the class of a request.
func (b *Backend) class(ttl time.Duration, name string) class {
	c := class{ttl: b.sessionTTL(ttl)}
	if b.o.sessions > 1 {
		c.index = int(maphash.String(b.seed, name) % uint64(b.o.sessions))
	}
	return c
}

// anySession returns a session for calls that concern no request.
func (b *Backend) anySession(ctx context.Context) (*session, error) {
	return b.session(ctx, b.o.ttl, "", 0)
}

// session returns a session for a request with that TTL and name, whose node has that size: the
// first session that has room for it. It makes one if there is none.
func (b *Backend) session(ctx context.Context, ttl time.Duration, name string, size int) (*session, error) {
	for c := b.class(ttl, name); ; c.index += b.o.sessions {
		s, err := b.sessionOfClass(ctx, c)
		switch {
		case err != nil || s.owned.fits(size):
			return s, err
		case b.borrowed != nil:
			return nil, fmt.Errorf("%w (%d bytes of paths): release leases first, or open a client by a URL, which makes as many sessions as it needs", errFull, s.owned.most)
		}
	}
}

// sessionOfClass returns the session of a class, and makes it if there is none.
func (b *Backend) sessionOfClass(ctx context.Context, c class) (*session, error) {
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return nil, driver.ErrClosed
	}
	sl := b.slots[c]
	if sl != nil && sl.s != nil {
		b.mu.Unlock()
		return sl.s, nil
	}
	if sl == nil {
		sl = &slot{done: make(chan struct{})}
		b.slots[c] = sl
		b.life.Go(func() { b.fill(c, sl) })
	}
	b.mu.Unlock()
	select {
	case <-sl.done:
		if sl.err != nil {
			return nil, sl.err
		}
		return sl.s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.life.Closed():
		return nil, driver.ErrClosed
	}
}

// fill makes the session of a slot.
func (b *Backend) fill(c class, sl *slot) {
	ctx, cancel := context.WithTimeout(b.life.Context(), connectTimeout)
	defer cancel()
	s, err := b.connect(ctx, c.ttl)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && s.Over() || !b.life.Over() && (errors.Is(err, conn.ErrEnded) || errors.Is(err, context.DeadlineExceeded)) {
		err = conn.ErrNoServer
	}
	if cause := b.fault.Err(); cause != nil && errors.Is(err, conn.ErrNoServer) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if err != nil && c.index >= b.o.sessions {
		err = fmt.Errorf("another session is needed, since the paths that one owns take at most %d bytes: %w", b.maxOwned(), err)
	}
	if err == nil && b.closed {
		err = driver.ErrClosed
		s.discard()
	}
	if err != nil {
		delete(b.slots, c)
	} else {
		sl.s = s
		b.life.Go(func() { s.monitor(c) })
		b.life.Go(s.watchNotices)
	}
	sl.err = err
	close(sl.done)
}

// connect makes a session, and its own node.
func (b *Backend) connect(ctx context.Context, ttl time.Duration) (*session, error) {
	over, stop := context.WithCancel(b.life.Context())
	s := &session{
		b: b, over: over.Done(), stop: stop, turn: make(chan struct{}, 1), reads: make(chan struct{}, maxReads),
		watches: map[string]*watch{}, directories: map[dirKey]*directory{}, requests: map[driver.ID]*ownRequest{}, busy: time.Now(),
		owned:   owned{most: b.maxOwned(), nodes: map[string]struct{}{}},
		sweeper: newSweeper(), noticed: kit.NewSignal(),
	}
	s.Session = conn.NewSession(conn.Listener{Event: s.event, End: s.end, Stop: b.life.Closed()})
	s.writes = newBatcher(b.maxBytes(), s.AwaitMulti, s.executeAlone)
	err := s.begin(ctx, ttl)
	if err == nil {
		s.node = b.sessionNode(uint64(s.ID))
		s.owned.add(s.node)
		err = s.enter(ctx)
		if errors.Is(err, conn.ErrEnded) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = errSilent
		}
	}
	if err != nil {
		s.discard()
		return nil, b.explain(b.life.Context(), err)
	}
	return s, nil
}

// errSilent: a server gave a session and then answered none of its calls.
var errSilent = fmt.Errorf("%w that works: one was opened, but its calls were not answered. The server may have just lost its leader, or be a follower with local sessions (localSessionsEnabled without localSessionsUpgradingEnabled)", conn.ErrNoServer)

// begin begins the session: on a connection of its own, or on the user's.
func (s *session) begin(ctx context.Context, ttl time.Duration) (err error) {
	if s.b.borrowed != nil {
		if err := s.Begin(ctx, s.b.borrowed); errors.Is(err, conn.ErrNoServer) {
			return fmt.Errorf("%w: the connection given to New has none", err)
		} else if err != nil {
			return err
		}
		s.ttl = ttlOf(s.Timeout, s.Lag)
		return nil
	}
	o := &s.b.o
	asked := o.timeout
	if asked == 0 {
		asked = timeoutFor(ttl, o.lag)
	}
	asked = max((asked + time.Millisecond - 1).Truncate(time.Millisecond), time.Millisecond)
	s.own, err = conn.Open(conn.Config{Servers: o.addrs, Timeout: asked, Dial: o.dial, Fault: s.b.fault, Owned: true, Lag: o.lag})
	if err != nil {
		return err
	}
	if err := s.Begin(ctx, s.own); err != nil {
		return err
	}
	s.ttl = ttlOf(s.Timeout, s.Lag)
	if o.timeout == 0 && s.Timeout == asked {
		s.ttl = ttl
	}
	if o.credentials == "" {
		return nil
	}
	return retry(ctx, func() error { return s.Authenticate(ctx, o.credentials) })
}

// enter registers the session below the root node, if that has a format that this client knows.
func (s *session) enter(ctx context.Context) error {
	there, err := s.checkFormat(ctx)
	if err != nil {
		return err
	}
	if err := s.register(ctx); err != nil {
		return err
	}
	if !there { // another client may have made the root node
		_, err = s.checkFormat(ctx)
	}
	return err
}

// discard undoes, in the background, the making of a session that will not be used.
func (s *session) discard() {
	s.stop()
	switch {
	case s.own == nil && s.node != "":
		go s.deleteAnywhere(s.node)
	case s.own != nil:
		go s.Session.Close()
	}
}

// event receives every event of the library. It must not block.
func (s *session) event(e zk.Event) {
	switch e.Type {
	case zk.EventSession:
		if e.State == zk.StateExpired || e.State == zk.StateHasSession && s.State().ID != s.ID {
			go s.end()
		}
	case zk.EventNodeDeleted, zk.EventNodeDataChanged, zk.EventNotWatching:
		if strings.HasPrefix(e.Path, s.b.root+"/sessions/") { // nothing else is watched there
			s.noticed.Set()
			return
		}
		s.mu.Lock()
		s.fire(e.Path)
		s.mu.Unlock()
	}
}

// monitor maintains the session until it ends.
func (s *session) monitor(c class) {
	period := min(max(s.Timeout/looks, 5*time.Millisecond), time.Second)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.Ended():
			return
		case <-s.b.life.Closed():
			return
		}
		now := time.Now()
		if !s.Check(now, period) {
			s.end()
			return
		}
		s.expire(now)
		waits, idle := s.load(now)
		if idle && s.own != nil && c != s.b.class(s.b.o.ttl, "") {
			s.end()
			return
		}
		if proved, _ := s.trust(s.ttl); waits && now.Sub(proved) >= s.ttl/3 {
			s.proveSoon()
		}
		s.recheckSoon(now, max(int(period/recheckPace), 1))
		s.pingSoon(now)
	}
}

// pingSoon sends a sign of life of an idle session, more often than the library does: a lease that
// is granted next is trusted for its whole TTL only if the last sign of life is not older than the
// rest of the session's timeout.
func (s *session) pingSoon(now time.Time) {
	every := s.Timeout / signs
	if now.Sub(s.pinged) < every || now.Sub(s.KnownAlive(now)) < every || !s.State().Up {
		return
	}
	s.pinged = now
	s.b.life.Go(func() { _, _ = s.Stat(s.b.life.Context(), s.node) })
}

// load reports whether requests of the session wait, and whether it has had none for idleTimeout.
func (s *session) load(now time.Time) (waits, idle bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if len(s.requests) > 0 {
		s.busy = now
	}
	return len(s.requests) > len(s.holds), now.Sub(s.busy) > idleTimeout
}

// expire removes holds that were not renewed for a TTL: the session would keep them for as long as
// it lives.
func (s *session) expire(now time.Time) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	var old []*ownRequest
	for _, req := range s.holds {
		if now.After(req.Until) && req.Asking == 0 {
			old = append(old, req)
		}
	}
	for _, req := range old {
		at := req.path
		s.b.forget(req, true)
		s.removeSoon(at)
	}
}

// end records that the session has ended: its leases are lost for good. The servers may end it
// later, or may have ended it long ago.
func (s *session) end() {
	b := s.b
	b.mu.Lock()
	if !s.End() {
		b.mu.Unlock()
		return
	}
	s.stop()
	s.mu.Lock()
	s.fireAll()
	s.mu.Unlock()
	for c, sl := range b.slots {
		if sl.s == s {
			delete(b.slots, c)
		}
	}
	var left []string
	var lost []driver.ID
	for id, req := range s.requests {
		if req.path != "" {
			left = append(left, req.path)
		}
		switch {
		case req.isKept() && !req.broken: // it stands without the session
			req.detach()
			req.s, req.path = nil, ""
		case req.granted:
			lost = append(lost, id)
			b.forget(req, true)
		}
	}
	notify, closed := b.notify, b.closed
	b.mu.Unlock()
	if closed {
		return
	}
	if s.own != nil {
		go s.Session.Close()
	} else {
		go s.deleteAnywhere(left...)
	}
	if notify != nil {
		for _, id := range lost {
			notify(id)
		}
	}
}

// close removes what the session has at the server, and ends it.
func (s *session) close() {
	s.b.mu.Lock()
	paths := []string{s.node}
	for _, req := range s.requests {
		if req.path != "" {
			paths = append(paths, req.path)
		}
	}
	s.b.mu.Unlock()
	if s.own != nil {
		s.Session.Close()
	} else {
		kit.Within(deleteTimeout, func() { s.deleteAnywhere(paths...) })
		s.Detach()
	}
	s.end()
}

// deleteAnywhere removes nodes on a user's connection, in whichever session that has: a session
// that the driver took for lost may go on, and a call that the library had not sent yet may have
// reached the next one. It returns when the nodes are gone or the connection is closed. After Close
// it stops trying after two session timeouts.
func (s *session) deleteAnywhere(paths ...string) {
	over := time.Now().Add(2 * s.Timeout)
	_ = each(len(paths), func(i int) error {
		for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			err := s.Library().Delete(paths[i], -1)
			if isRemoved(err) || errors.Is(err, zk.ErrClosing) || s.b.life.Over() && time.Now().After(over) {
				return nil
			}
			time.Sleep(wait)
		}
	})
}

// retry runs f again for as long as its error is that of the network connection.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !conn.Disconnected(err) {
			return err
		}
		if err := kit.Pause(ctx, nil, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// name returns the name of the session's own node, which the data of its requests' nodes has.
func (s *session) name() string { return path.Base(s.node) }
