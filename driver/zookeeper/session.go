package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// A session lasts 7/5 of the TTL that its leases have, and at least 4/3 of that and a lag. The
// leader, who expires sessions, counts from the last sign of life that a follower told it of: the
// one a third of a TTL before the proof, if the follower is cut off within the lag (half a tick)
// after that.
const (
	sessionShare = 7
	ttlShare     = 5
)

// usualLag is the lag of servers with the usual tick of two seconds.
const usualLag = time.Second

// timeoutFor returns the timeout of a session for that TTL; ttlOf the TTL that a session's timeout
// allows.
func timeoutFor(ttl, lag time.Duration) time.Duration {
	return max((ttl*sessionShare+ttlShare-1)/ttlShare, (ttl*4+2)/3+lag)
}

func ttlOf(timeout, lag time.Duration) time.Duration {
	return min(timeout*ttlShare/sessionShare, (timeout-lag)*3/4)
}

const (
	connectTimeout = 10 * time.Second // for a new session
	greetTimeout   = 2 * time.Second  // for a server to take a connection; at most
	openTimeout    = 7 * time.Second  // for servers to say how long their sessions last
	// for a server that answers nothing before another is tried; at most
	callTimeout  = 10 * time.Second
	patience     = 8 * time.Second // of who only tries
	closeTimeout = 2 * time.Second // for the good end of one
	idleTimeout  = time.Minute     // for one without requests, but the first
)

// session is one session with the ensemble, and the connection that carries it. What it created
// dies with it.
type session struct {
	b       *Backend
	conn    *zk.Conn
	line    *Line
	own     bool // the driver made the connection
	id      int64
	timeout time.Duration
	lag     time.Duration  // how late the leader may hear of it
	ttl     time.Duration  // of its leases, at most
	node    string         // the path of its own node
	ended   chan struct{}  // closed when it is over
	signed  time.Time      // when keep last gave a sign of life
	turn    chan struct{}  // held by whoever proves
	reads   chan struct{}  // has a token for each listing and watch under way
	calls   sync.WaitGroup // of the library, under way

	mu       sync.Mutex
	over     bool
	shut     bool // no call begins any more
	watches  map[string]*watch
	halls    map[hallKey]*hall
	checking bool          // it is looked whether those who wait have missed anything
	alive    time.Time     // before the last write that succeeded was sent
	room     time.Duration // for which the leader keeps the session from then on, at least
	ahead    time.Duration // of the server's clock before ours
	version  int32         // of its own node
	sent     string        // what was last written to its own node
	unsure   bool          // it is not known whether that was executed
	count    int           // of those writes

	// guarded by b.mu
	audits int // how often all nodes were looked at
	mine   map[driver.ID]*mine
	holds  []*mine // the granted ones of those
	next   int     // the hold that is to be looked at next
	idling time.Time
}

// errNoServer: there is no session within connectTimeout.
var errNoServer = errors.New("no server gave a session")

// class is what requests share a session. A pool has several for each TTL.
type class struct {
	ttl   time.Duration // of the session's leases, at most; 0: of all that there are
	index int
}

// slot is a class's session, or the attempt to make one.
type slot struct {
	s    *session
	done chan struct{} // closed when the attempt ended; nil: there is none
	err  error
}

// session returns the session for requests with that TTL under that name, and makes one if there is
// none.
func (b *Backend) session(ctx context.Context, ttl time.Duration, name string) (*session, error) {
	c := b.class(ttl, name)
	b.mu.Lock()
	if b.closed {
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
		b.tasks.Go(func() { b.begin(c, sl) })
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
	case <-b.stop:
		return nil, driver.ErrClosed
	}
}

// begin makes the session of a slot.
func (b *Backend) begin(c class, sl *slot) {
	ctx, cancel := context.WithTimeout(b.ctx, connectTimeout)
	defer cancel()
	s, err := b.connect(ctx, c.ttl)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && s.isOver() || b.ctx.Err() == nil && (errors.Is(err, errEnded) || errors.Is(err, context.DeadlineExceeded)) {
		err = errNoServer
	}
	if cause := b.fault.get(); cause != nil && errors.Is(err, errNoServer) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if err == nil && b.closed {
		err = driver.ErrClosed
		s.discard()
	}
	if err != nil {
		delete(b.slots, c)
	} else {
		sl.s = s
		b.tasks.Go(func() { s.keep(c) })
	}
	sl.err = err
	done := sl.done
	close(done)
}

// connect makes a session, and its own node.
func (b *Backend) connect(ctx context.Context, ttl time.Duration) (*session, error) {
	s := &session{
		b: b, ended: make(chan struct{}), turn: make(chan struct{}, 1), reads: make(chan struct{}, reads), watches: map[string]*watch{},
		halls: map[hallKey]*hall{}, mine: map[driver.ID]*mine{}, idling: time.Now(),
	}
	var err error
	if b.user != nil {
		err = s.adopt(ctx, b.user, b.line)
	} else {
		err = s.dial(ctx, ttl)
	}
	if err == nil {
		s.node = fmt.Sprintf("%s/sessions/%016x-%s", b.root, uint64(s.id), b.id)
		err = s.enrol(ctx)
	}
	if err != nil {
		s.discard()
		return nil, b.explain(b.ctx, err)
	}
	return s, nil
}

// discard undoes, in the background, what making a session did that nobody will use.
func (s *session) discard() {
	if s.own {
		go s.leave()
	} else if s.node != "" {
		go s.clear(s.node)
	}
}

// dial makes a session on a connection of its own.
func (s *session) dial(ctx context.Context, ttl time.Duration) error {
	o := &s.b.o
	asked := o.timeout
	if asked == 0 {
		asked = timeoutFor(ttl, o.lag)
	}
	asked = max((asked + time.Millisecond - 1).Truncate(time.Millisecond), time.Millisecond)
	line := NewLine(o.dial)
	line.own, line.lag, line.fault = true, o.lag, s.b.fault
	ready := make(chan struct{})
	var once sync.Once
	line.listen(func(e zk.Event) {
		if e.Type == zk.EventSession && e.State == zk.StateHasSession {
			once.Do(func() { close(ready) })
		}
	}, "")
	conn, _, err := zk.Connect(o.addrs, asked, zk.WithDialer(line.Dial), zk.WithEventCallback(line.Event), zk.WithHostProvider(&hosts{line: line, addrs: o.addrs}),
		zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithMaxConnBufferSize(256<<10))
	if err != nil {
		return err
	}
	s.conn, s.line, s.own = conn, line, true
	for waits := true; waits; {
		t := time.NewTimer(time.Second)
		select {
		case <-ready:
			waits = false
		case <-ctx.Done():
			t.Stop()
			return errNoServer
		case <-t.C:
			line.dumb(time.Now().Add(-greetTimeout))
		}
		t.Stop()
	}
	st := line.state()
	s.id, s.timeout, s.lag = st.id, st.timeout, st.lag
	s.ttl = ttlOf(s.timeout, s.lag)
	if o.timeout == 0 && s.timeout == asked {
		s.ttl = ttl
	}
	line.listen(s.event, s.b.locks())
	if o.credentials != "" {
		for {
			err := s.call(ctx, func(c *zk.Conn) error { return c.AddAuth("digest", []byte(o.credentials)) }, nil)
			if !brokenLine(err) {
				return err
			}
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// adopt takes the session that the user's connection has now.
func (s *session) adopt(ctx context.Context, conn *zk.Conn, line *Line) error {
	s.conn, s.line = conn, line
	var odd time.Time // since when something is wrong
	for {
		switch patience := apart(conn, line); {
		case patience == 0:
			odd = time.Time{}
		case odd.IsZero():
			odd = time.Now()
		case time.Since(odd) > patience:
			return errApart
		}
		st := line.state()
		if st.up && st.id != 0 {
			s.id, s.timeout, s.lag = st.id, st.timeout, st.lag
			s.ttl = ttlOf(s.timeout, st.lag)
			line.listen(s.event, s.b.locks())
			if now := line.state(); now.id == s.id {
				return nil
			}
		}
		line.dumb(time.Now().Add(-greetTimeout))
		if pause(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("%w: the connection has none", errNoServer)
		}
	}
}

// errApart: what a line does not hear cannot be used.
var errApart = fmt.Errorf("%w connection: it was not made with this line; connect with zk.WithDialer(line.Dial) and zk.WithEventCallback(line.Event), "+
	"both of the line that New is given", driver.ErrInvalid)

// apart returns 0, or for how long the connection may be as it is now if it goes through the line:
// it has a session that the line has not heard of, or looks for a server and has not dialled.
func apart(conn *zk.Conn, line *Line) time.Duration {
	// the library pauses for a second before it dials again
	const moment, dialling = 250 * time.Millisecond, 3 * time.Second
	st, id := line.state(), conn.SessionID()
	switch {
	case conn.State() == zk.StateHasSession && (st.id != id || !st.up):
		return moment
	case !st.tried && conn.Server() != "":
		return dialling
	}
	return 0
}

// enrol makes the session's own node: a write to it proves the session, and one by somebody else
// says that a hold was broken.
func (s *session) enrol(ctx context.Context) error {
	data := fmt.Sprint(s.count)
	return s.withParents(ctx, s.node, func() error {
		sent := s.now()
		var stat *zk.Stat
		err := s.call(ctx, func(c *zk.Conn) error {
			res, err := c.Multi(&zk.CreateRequest{Path: s.node, Data: []byte{}, Acl: s.b.o.ACL, Flags: zk.FlagEphemeral},
				&zk.SetDataRequest{Path: s.node, Data: []byte(data), Version: 0})
			if err == nil && len(res) == 2 && res[1].Stat != nil {
				stat = res[1].Stat
			}
			return err
		}, nil)
		if err == nil && stat == nil {
			return errAnswer
		}
		if errors.Is(err, zk.ErrNodeExists) { // an earlier attempt made it
			err = s.call(ctx, func(c *zk.Conn) (err error) {
				_, stat, err = c.Get(s.node)
				return err
			}, nil)
		}
		if err == nil {
			s.mu.Lock()
			s.version, s.sent = stat.Version, data
			s.mu.Unlock()
			s.wrote(sent)
			s.clock(sent.sent, stat)
		}
		return err
	})
}

var errAnswer = errors.New("unexpected answer")

// moment is when a write was sent, and a sign of life that the leader knew of by then if the write
// succeeded.
type moment struct{ sent, known time.Time }

func (s *session) now() moment {
	now := time.Now()
	return moment{now, s.line.known(now.Add(-s.lag))}
}

// wrote takes note of a write that succeeded: the session was alive when it was sent. The follower
// was in touch with the leader then, but may not have told it of the write's client yet, only of
// its signs of life until a lag before.
func (s *session) wrote(m moment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.sent.After(s.alive) {
		s.alive, s.room = m.sent, s.timeout-m.sent.Sub(m.known)
	}
}

// lives returns when the session was last proved, and for how long leases of that TTL may be
// trusted from then on: for less if the session had been idle.
func (s *session) lives(ttl time.Duration) (since time.Time, trust time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive, max(min(ttl, s.ttl, s.room), 1)
}

// clock takes note of the server's clock, which stamped what was written between since and now.
func (s *session) clock(since time.Time, stat *zk.Stat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = time.UnixMilli(stat.Mtime).Sub(since.Add(time.Since(since) / 2))
}

// age returns how long ago the server's clock showed ms.
func (s *session) age(ms int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(time.Now().Add(s.ahead).Sub(time.UnixMilli(ms)), 0)
}

// event is told of everything that the library hears. It must not block.
func (s *session) event(e zk.Event) {
	switch e.Type {
	case zk.EventSession:
		switch {
		case e.State == zk.StateExpired, e.State == zk.StateHasSession && s.line.state().id != s.id:
			go s.end()
		}
	case zk.EventNodeDeleted, zk.EventNodeDataChanged, zk.EventNotWatching:
		s.mu.Lock()
		s.fire(e.Path)
		s.mu.Unlock()
	}
}

// keep looks after the session until it is over.
func (s *session) keep(c class) {
	period := min(max(s.timeout/20, 5*time.Millisecond), time.Second)
	tick := time.NewTicker(period)
	defer tick.Stop()
	last, awake := time.Now(), time.Now()
	for {
		select {
		case <-tick.C:
		case <-s.ended:
			return
		case <-s.b.stop:
			return
		}
		now, st := time.Now(), s.line.state()
		if st.id != s.id || now.Sub(st.last) >= s.timeout || !s.own && s.line.ended() {
			s.end()
			return
		}
		quarter := max(s.timeout/4, 50*time.Millisecond)
		// this process stood still: there may be an answer that it has not read
		if now.Sub(last) > period+quarter/4 {
			awake = now
		}
		last = now
		if since := now.Add(-min(quarter, callTimeout)); awake.Before(since) && s.line.stalled(since) {
			s.line.hangUp(since)
		}
		s.line.dumb(now.Add(-min(quarter, greetTimeout)))
		s.expire(now)
		if waits, idle := s.load(now); idle && s.own && c != s.b.class(s.b.o.ttl, "") {
			s.end()
			return
		} else if since, _ := s.lives(s.ttl); waits && now.Sub(since) >= s.ttl/3 {
			s.proveSoon()
		}
		s.checkSoon(now, max(int(period/checkEvery), 1))
		s.signSoon(now)
	}
}

// signSoon gives the leader a sign of life of an idle session, which the library does less often
// than a lease needs that is granted then: its whole TTL is trusted only if a sign is not older
// than the rest of the session's timeout.
func (s *session) signSoon(now time.Time) {
	every := s.timeout / 6
	if now.Sub(s.signed) < every || now.Sub(s.line.known(now)) < every || !s.line.state().up {
		return
	}
	s.signed = now
	s.b.tasks.Go(func() { _, _ = s.stat(s.b.ctx, s.node) })
}

// load reports whether requests of the session wait, and whether it has had none for long.
func (s *session) load(now time.Time) (waits, idle bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if len(s.mine) > 0 {
		s.idling = now
	}
	return len(s.mine) > len(s.holds), now.Sub(s.idling) > idleTimeout
}

// expire removes holds that nobody has renewed for a TTL: the session would keep them for as long
// as it lives.
func (s *session) expire(now time.Time) {
	var old []*mine
	s.b.mu.Lock()
	for _, m := range s.holds {
		if now.After(m.until) && m.asking == 0 {
			old = append(old, m)
		}
	}
	for _, m := range old {
		at := m.path
		s.b.forget(m, true)
		s.b.tasks.Go(func() { s.remove(at) })
	}
	s.b.mu.Unlock()
}

// end takes note that the session is over: its leases are lost, for good. The server may know
// later, or may have known for long.
func (s *session) end() {
	b := s.b
	b.mu.Lock()
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		b.mu.Unlock()
		return
	}
	s.over = true
	close(s.ended)
	s.fireAll()
	s.mu.Unlock()
	for c, sl := range b.slots {
		if sl.s == s {
			delete(b.slots, c)
		}
	}
	var left []string
	var ids []driver.ID
	for id, m := range s.mine {
		if m.path != "" {
			left = append(left, m.path)
		}
		if m.granted {
			ids = append(ids, id)
			b.forget(m, true)
		}
	}
	notify, closed := b.notify, b.closed
	b.mu.Unlock()
	if closed {
		return
	}
	if s.own {
		go s.leave()
	} else {
		go s.clear(left...)
	}
	if notify != nil {
		for _, id := range ids {
			notify(id)
		}
	}
}

// leave ends the session at the server, as far as it can be reached, and the connection. It returns
// within a little more than twice closeTimeout.
func (s *session) leave() {
	if s.conn == nil {
		return
	}
	if !s.rest() { // the library has to give them up by itself
		s.line.end()
		s.line.hangUp(time.Now().Add(time.Hour))
		go func() {
			s.calls.Wait()
			s.conn.Close()
		}()
		return
	}
	within(closeTimeout, s.conn.Close)
	s.line.end()
	s.line.hangUp(time.Now().Add(time.Hour))
}

// rest lets no call begin any more, and waits until those under way have ended: a call that the
// library's Close overtakes reads its answer while that is written. It reports whether they have.
func (s *session) rest() bool {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	return within(closeTimeout, s.calls.Wait)
}

// within runs f, and reports whether it returned in that time. If not it goes on.
func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// clear removes nodes on a user's connection, in whichever session: what the driver gave up for
// lost may go on, and a call that the library had not sent yet may have reached the next one. It
// ends when they are gone, or the connection is closed; after Close soon.
func (s *session) clear(paths ...string) {
	over := time.Now().Add(2 * s.timeout)
	_ = each(len(paths), func(i int) error {
		for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			err := s.conn.Delete(paths[i], -1)
			if removed(err) || errors.Is(err, zk.ErrClosing) || s.b.ctx.Err() != nil && time.Now().After(over) {
				return nil
			}
			time.Sleep(wait)
		}
	})
}

// silent is a logger for the library. What it has to say is in the errors, and its addresses may be
// in a URL with a password.
type silent struct{}

// Printf is zk.Logger's.
func (silent) Printf(string, ...any) {}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
