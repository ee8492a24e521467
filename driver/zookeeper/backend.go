package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// Options configure [New]. The zero value is useful.
type Options struct {
	// the path under which everything stands, clean and absolute, as "/teams/shop"; it is made if
	// it is missing; empty: the root
	Chroot string
	// the name of the node there, encoded as the names of locks are, 255 bytes at most; empty:
	// dlock
	Prefix string
	ACL    []zk.ACL // of what is created; empty: everybody may do everything

	// Identity names the queues, for contexts that carry holds between clients of one process:
	// clients of the same queues have the same. Empty: the connection, so that another connection
	// to the same servers is taken for other queues.
	Identity string
}

// options are those of a backend that makes its own connections.
type options struct {
	Options
	addrs       []string
	dial        zk.Dialer
	ttl         time.Duration // that of most requests
	lag         time.Duration // how late a leader may hear of a client
	timeout     time.Duration // of every session; 0: it follows from the TTL
	sessions    int           // for each TTL
	credentials string        // user:password
	scheme      string
}

// Backend is a client of one ensemble. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier] and [driver.Lister], whose contracts it keeps.
type Backend struct {
	o     options
	user  *zk.Conn // nil: the backend makes its own
	line  *Line    // of the user's connection
	fault *fault   // why no server is reached
	id    driver.ID
	root  string // the path above locks and sessions
	caps  driver.Capabilities
	seed  maphash.Seed
	plain atomic.Bool // the server has no container nodes

	ctx    context.Context // ends with Close
	stop   <-chan struct{} // its Done
	cancel context.CancelFunc
	tasks  sync.WaitGroup // what goes on in the background

	mu     sync.Mutex
	closed bool
	notify func(driver.ID)
	slots  map[class]*slot
	mine   map[driver.ID]*mine     // what may stand in the queues
	tombs  map[driver.ID]time.Time // what must not come to life, until then
	swept  time.Time               // when tombs were last cleared away
}

// mine is a request of this client that may stand in a queue. The backend's mu guards it.
type mine struct {
	r       driver.Request
	turn    chan struct{} // held by the one call of Acquire that acts; copies wait
	wake    chan struct{} // has a token in it if the one that waits has to look
	asking  int           // calls of Acquire under way
	s       *session      // where it stands; nil: it was not sent yet
	path    string        // of its node; empty: not known
	token   driver.Token
	granted bool
	broken  bool      // its node is not as it was: somebody ended the hold
	audited int       // the last audit of its session that looked at its node, or came before that
	gone    bool      // it was released
	slot    int       // among the session's holds
	until   time.Time // it cannot have expired before
	stood   bool      // it waits in the queue, as a server has said; for who has the turn
	doubt   bool      // there may be a node of it that is not at path
	deleted bool      // a delete of it may have been executed
	leaving bool      // it is being released
}

// New returns a backend over the user's own connection, which Close leaves open, but for what dlock
// created in its session: that is removed. The line is the one whose Dial and Event the connection
// was made with. New waits until the connection has a session, for ten seconds or until ctx ends,
// and returns an error if there is none, or if the session may not create what it has to;
// ErrInvalid if conn or line is nil, if the line serves a backend that is not closed, or if an
// option is not as its comment says.
//
// A connection that was made without the line is refused at once, as ErrInvalid: what the line does
// not hear cannot be known.
//
// The greatest TTL is the one that the connection's session allows, 5/7 of its timeout, less of one
// below 21 s, and the least is half of that: a holder that died is freed at the session's timeout,
// whatever its TTL was. If that session is lost so are the leases; the client goes on with the next
// session that the connection gets.
func New(ctx context.Context, conn *zk.Conn, line *Line, o Options) (*Backend, error) {
	if conn == nil || line == nil {
		return nil, fmt.Errorf("%w: New needs the connection, and the line that it was made with: zk.WithDialer(line.Dial), zk.WithEventCallback(line.Event)", driver.ErrInvalid)
	}
	if o.Identity == "" {
		o.Identity = fmt.Sprintf("%p", conn)
	}
	b, err := newBackend(options{Options: o, scheme: "zookeeper", sessions: 1})
	if err != nil {
		return nil, err
	}
	if !line.take() {
		return nil, fmt.Errorf("%w line: it serves another backend, which is not closed; make a connection with a line of its own, or share that backend", driver.ErrInvalid)
	}
	b.user, b.line, b.fault = conn, line, line.fault
	s, err := b.session(ctx, 0, "")
	if err != nil {
		b.Close()
		return nil, err
	}
	b.bound(s.ttl/2, s.ttl)
	return b, nil
}

// bound sets the TTLs that are allowed, in milliseconds, which are easier to read than what follows
// from a timeout.
func (b *Backend) bound(least, most time.Duration) {
	b.caps.MinTTL = (least + time.Millisecond - 1).Truncate(time.Millisecond)
	b.caps.MaxTTL = most.Truncate(time.Millisecond)
}

// refuse is an error if no session keeps a lease of that TTL.
func (b *Backend) refuse(ttl time.Duration) error {
	if ttl >= b.caps.MinTTL && ttl <= b.caps.MaxTTL {
		return nil
	}
	return fmt.Errorf("%w TTL of %s: the servers' sessions allow %s to %s (docs/zookeeper.md tells why)", driver.ErrInvalid, ttl, b.caps.MinTTL, b.caps.MaxTTL)
}

func newBackend(o options) (*Backend, error) {
	o.Chroot = strings.TrimSuffix(o.Chroot, "/")
	if o.Prefix == "" {
		o.Prefix = "dlock"
	}
	if len(o.ACL) == 0 {
		o.ACL = zk.WorldACL(zk.PermAll)
	}
	if o.Chroot != "" && path.Clean("/"+o.Chroot) != o.Chroot || len(o.Prefix) > 255 || o.Chroot == "" && encode(o.Prefix) == "zookeeper" {
		return nil, fmt.Errorf("%w options: the chroot is a clean absolute path, and the prefix has at most 255 bytes and is not zookeeper's own node", driver.ErrInvalid)
	}
	b := &Backend{
		o: o, id: driver.NewID(), root: o.Chroot + "/" + encode(o.Prefix), seed: maphash.MakeSeed(), fault: &fault{},
		slots: map[class]*slot{}, mine: map[driver.ID]*mine{}, tombs: map[driver.ID]time.Time{},
		caps: driver.Capabilities{
			Backend: o.scheme, Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true, Inspect: true, Durable: true,
		},
	}
	b.caps.Identity = fmt.Sprintf("%q%s", o.Identity, b.root) // the path is the queues'
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.stop = b.ctx.Done()
	return b, nil
}

// locks returns what the paths of all directories begin with.
func (b *Backend) locks() string { return b.root + "/locks/" }

// dir returns the path of a name's directory.
func (b *Backend) dir(name string) string { return b.locks() + encode(name) }

// fit returns the TTL of the sessions that serve requests of that TTL, as if they had that TTL or
// more, and less than twice of it: the client's own, or a power of two of a second. So all TTLs
// that there are make a few sessions.
func (b *Backend) fit(ttl time.Duration) time.Duration {
	if b.user != nil || b.o.timeout > 0 {
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

// class returns which session a request has.
func (b *Backend) class(ttl time.Duration, name string) class {
	c := class{ttl: b.fit(ttl)}
	if b.o.sessions > 1 {
		c.index = int(maphash.String(b.seed, name) % uint64(b.o.sessions))
	}
	return c
}

// some returns a session for what concerns no request.
func (b *Backend) some(ctx context.Context) (*session, error) { return b.session(ctx, b.o.ttl, "") }

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier].
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notify = lost
}

// String names the driver, and nothing of how it connects. So does GoString.
func (b *Backend) String() string { return "zookeeper.Backend{…}" }

// GoString is String.
func (b *Backend) GoString() string { return b.String() }

// Format is String, for every verb.
func (b *Backend) Format(f fmt.State, _ rune) { fmt.Fprint(f, b.String()) }

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := b.refuse(r.TTL); err != nil {
		return driver.Grant{}, err
	}
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	case b.dead(r.ID):
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrLost
	}
	m := b.mine[r.ID]
	if m == nil {
		m = &mine{r: r, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
		b.mine[r.ID] = m
	}
	m.asking++
	b.mu.Unlock()

	asked := ctx
	if !r.Wait { // who only tries has no time to wait for a server
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	g, err := driver.Grant{}, error(nil)
	select {
	case m.turn <- struct{}{}:
		g, err = b.acquire(ctx, m, r.Wait)
		err = b.ended(ctx, asked, err, m.stood)
		<-m.turn
	case <-ctx.Done():
		err = b.ended(ctx, asked, ctx.Err(), false)
	case <-b.stop:
		err = driver.ErrClosed
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	m.asking--
	if b.closed { // which removes what it knew
		if s := m.s; s != nil && !s.own && m.path != "" {
			go s.clear(m.path)
		}
		return driver.Grant{}, driver.ErrClosed
	}
	if err == nil && m.gone {
		err = driver.ErrLost
	}
	if err != nil {
		if m.asking == 0 {
			b.giveUp(m)
		}
		return driver.Grant{}, err
	}
	return g, nil
}

// ended is the error of an Acquire that ended with err, where ctx is what remained of the time that
// was asked for.
func (b *Backend) ended(ctx, asked context.Context, err error, stood bool) error {
	switch {
	case err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()):
	case asked.Err() != nil && stood:
		return driver.Waited(asked)
	case asked.Err() == nil:
		err = fmt.Errorf("no server answered for %s", patience)
		if cause := b.fault.get(); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return err
	}
	return b.explain(asked, err)
}

// dead reports whether the request must not come to life. b.mu is held.
func (b *Backend) dead(id driver.ID) bool {
	until, is := b.tombs[id]
	return is && time.Now().Before(until)
}

// bury sees to it that the request does not come to life. b.mu is held.
func (b *Backend) bury(r driver.Request) {
	now := time.Now()
	if now.Sub(b.swept) > time.Minute {
		b.swept = now
		for id, until := range b.tombs {
			if now.After(until) {
				delete(b.tombs, id)
			}
		}
	}
	b.tombs[r.ID] = now.Add(max(2*r.TTL, 10*time.Second))
}

// forget takes note that the request stands nowhere any more, or will not for long. b.mu is held.
func (b *Backend) forget(m *mine, lost bool) {
	if b.mine[m.r.ID] == m {
		delete(b.mine, m.r.ID)
	}
	if lost || m.doubt {
		b.bury(m.r)
	}
	m.gone = true
	poke(m.wake)
	b.unstand(m)
}

// unstand takes a request out of its session. b.mu is held.
func (b *Backend) unstand(m *mine) {
	s := m.s
	if s == nil {
		return
	}
	if s.mine[m.r.ID] == m {
		delete(s.mine, m.r.ID)
	}
	if m.granted {
		last := len(s.holds) - 1
		s.holds[m.slot] = s.holds[last]
		s.holds[m.slot].slot = m.slot
		s.holds[last] = nil
		s.holds = s.holds[:last]
		m.granted = false
	}
}

// giveUp removes a request whose Acquire failed, in the background. b.mu is held.
func (b *Backend) giveUp(m *mine) {
	if b.mine[m.r.ID] != m {
		if m.path == "" || m.s == nil {
			return
		}
	}
	s, at := m.s, m.path
	m.path = ""
	b.forget(m, false)
	if s != nil && at != "" {
		b.tasks.Go(func() { s.remove(at) })
	}
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.cancel()
	var ss []*session
	for _, sl := range b.slots {
		if sl.s != nil {
			ss = append(ss, sl.s)
		}
	}
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range ss {
		wg.Go(s.bye)
	}
	wg.Wait()
	b.tasks.Wait() // each ends with the context
	if b.line != nil {
		b.line.free()
	}
	return nil
}

// bye removes what the session has at the server.
func (s *session) bye() {
	if s.own {
		s.leave()
	} else {
		s.b.mu.Lock()
		paths := []string{s.node}
		for _, m := range s.mine {
			if m.path != "" {
				paths = append(paths, m.path)
			}
		}
		s.b.mu.Unlock()
		within(closeTimeout, func() { s.clear(paths...) })
		s.line.listen(nil, s.b.locks())
		if !s.rest() {
			s.line.hangUp(time.Now().Add(time.Hour)) // which ends them
		}
	}
	s.end()
}
