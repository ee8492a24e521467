package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// Options configure [New]. The zero value is useful.
type Options struct {
	// Chroot is the path under which dlock keeps its nodes, clean and absolute, such as
	// "/teams/shop". It is created if it is missing. Empty: the root.
	Chroot string
	// Prefix is the name of dlock's node under Chroot, at most 255 bytes. It is encoded as the
	// names of locks are. Empty: dlock.
	Prefix string
	// ACL is the ACL of all nodes that are created. Empty: every client may do everything.
	ACL []zk.ACL
	// Identity names the servers, for contexts that carry holds between clients of one process.
	// Clients of the same servers must have the same Identity, all others different ones. Empty:
	// the servers are queried when it matters.
	Identity string
	// JuteMaxBuffer is the servers' jute.maxbuffer in bytes, at least 32 KiB. A client cannot read
	// it. It bounds what one session owns, since the end of a session is one transaction. 0:
	// 1,048,575, the servers' default. With a value below the servers', dlock opens more sessions
	// than it needs or, on the connection given to New, has room for fewer requests. A value above
	// it endangers the servers.
	JuteMaxBuffer int
	// TokenBase is added to every token, for a fleet that moves here from a backend with greater
	// tokens, so that tokens go on growing. It must be the same for all clients that share locks,
	// and stay for good. At most 1<<62.
	TokenBase driver.Token
}

// options are those of a backend that makes its own connections.
type options struct {
	Options
	addrs       []string
	dial        zk.Dialer
	ttl         time.Duration // that of most requests
	lag         time.Duration // how late a sign of life of a client may reach the leader
	timeout     time.Duration // of every session; 0: it follows from the TTL
	sessions    int           // for each TTL
	credentials string        // user:password
	scheme      string
	peers       *peerFormat // nil: the driver's own format
	path        string      // of the peers' locks, with the name's place
}

// Backend is a client of one ensemble. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier] and [driver.Lister], whose contracts it keeps. New makes one;
// package dlock refuses the zero Backend.
type Backend struct {
	o        options
	borrowed *conn.Conn // the user's connection; nil: the backend makes its own
	fault    *conn.Fault
	id       driver.ID
	root     string // the path above locks and sessions
	layout   layout
	checks   int // how many holds one proof checks
	caps     driver.Capabilities
	tokens   kit.TokenBase
	seed     maphash.Seed
	// noContainers: the server is older than container nodes
	noContainers atomic.Bool

	life *kit.Life

	mu         sync.Mutex
	closed     bool
	notify     func(driver.ID)
	slots      map[class]*slot
	requests   kit.Requests[*ownRequest]
	tombstones kit.Tombstones
	remaining  map[*kept][]string // the nodes of fixed requests that are being removed
}

// New returns a backend over the user's own connection. Close leaves the connection open, and
// removes what dlock created in its session. New waits until the connection has a session, for ten
// seconds or until ctx ends. It returns an error if there is none, or if the session lacks a right
// to create its nodes; driver.ErrUnsupported if the nodes on the servers have another format;
// driver.ErrInvalid if the connection was not made by [Connect], if it serves a backend that is not
// closed, or if an option is not valid.
//
// The greatest TTL is the one that the connection's session allows, 3/4 of its timeout (less of one
// below 20 s), and the least is half of that: the lock of a dead holder becomes free at the
// session's timeout, whatever its TTL was. The paths that the session owns take at most half of
// JuteMaxBuffer; a request for which it has no room is refused. If the session is lost, so are the
// leases; the client continues with the next session that the connection gets.
func New(ctx context.Context, c *Conn, o Options) (*Backend, error) {
	if c == nil || c.c == nil {
		return nil, fmt.Errorf("%w connection: New needs one that zookeeper.Connect made", driver.ErrInvalid)
	}
	b, err := newBackend(options{Options: o, scheme: "zookeeper", sessions: 1})
	if err != nil {
		return nil, err
	}
	if !c.c.Take() {
		return nil, fmt.Errorf("%w connection: it serves another backend that is not closed; make another connection, or share that backend", driver.ErrInvalid)
	}
	b.borrowed, b.fault = c.c, c.c.Fault()
	s, err := b.anySession(ctx)
	if err != nil {
		b.Close()
		return nil, err
	}
	b.setBounds(s.ttl/2, s.ttl)
	return b, nil
}

func newBackend(o options) (*Backend, error) {
	o.Chroot = strings.TrimSuffix(o.Chroot, "/")
	if o.Prefix == "" {
		o.Prefix = "dlock"
	}
	if len(o.ACL) == 0 {
		o.ACL = zk.WorldACL(zk.PermAll)
	}
	if o.JuteMaxBuffer == 0 {
		o.JuteMaxBuffer = usualBuffer
	}
	switch {
	case o.Chroot != "" && path.Clean("/"+o.Chroot) != o.Chroot,
		len(o.Prefix) > 255, o.Chroot == "" && encode(o.Prefix) == "zookeeper":
		return nil, fmt.Errorf("%w options: the chroot must be a clean absolute path; the prefix must have at most 255 bytes, and must not be ZooKeeper's own node /zookeeper", driver.ErrInvalid)
	}
	tokens := kit.TokenBase(o.TokenBase)
	if err := tokens.Check(); err != nil {
		return nil, err
	}
	b := &Backend{
		tokens: tokens,
		o:      o, id: driver.NewID(), root: o.Chroot + "/" + encode(o.Prefix), seed: maphash.MakeSeed(), fault: &conn.Fault{},
		life: kit.NewLife(), slots: map[class]*slot{}, requests: kit.NewRequests(newOwnRequest),
		remaining: map[*kept][]string{},
		caps: driver.Capabilities{
			Backend: o.scheme, Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true, Inspect: true, Durable: true,
			FailoverSafe: true, FixedOutlives: true, MaxFixed: maxFixed,
		},
	}
	b.layout = native{b.root}
	where := b.root
	if o.peers != nil {
		l, err := newPeerLayout(o.peers, o.Chroot, o.path, b.root)
		if err != nil {
			return nil, fmt.Errorf("%w options: %w", driver.ErrInvalid, err)
		}
		b.layout, where = l, fmt.Sprintf("%s=%s", l.name, o.Chroot+o.path)
		b.caps.Format, b.caps.Shared = l.name, l.reads
		b.caps.Semaphores, b.caps.Joins, b.caps.FixedOutlives, b.caps.MaxFixed = false, false, false, 0
	}
	if o.Identity != "" {
		b.caps.Identity = fmt.Sprintf("%q%s", o.Identity, where) // other paths have other queues
	}
	return b, b.checkSizes()
}

// setBounds sets the TTLs that are allowed, rounded to whole milliseconds for legibility.
func (b *Backend) setBounds(least, most time.Duration) {
	b.caps.MinTTL = (least + time.Millisecond - 1).Truncate(time.Millisecond)
	b.caps.MaxTTL = most.Truncate(time.Millisecond)
}

// maxFixed is the greatest TTL of a fixed request, which no session bounds.
const maxFixed = 24 * time.Hour

// checkTTL returns an error if no session can keep a lease of the request's TTL, or if the TTL of a
// fixed request is out of bounds.
func (b *Backend) checkTTL(r driver.Request) error {
	check := kit.CheckTTL
	if r.Fixed {
		check = kit.CheckFixed
	}
	if err := check(r.TTL, b.caps); err != nil {
		return fmt.Errorf("%w by the servers' sessions (docs/zookeeper.md explains the bounds)", err)
	}
	return nil
}

// locks returns the common prefix of the paths of all directories in the driver's own layout.
func (b *Backend) locks() string { return b.root + "/locks/" }

// dir returns the path of a name's directory.
func (b *Backend) dir(name string) string { return b.layout.dir(name) }

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier].
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notify = lost
}

// String returns a text that names the driver, without the servers and the credentials.
func (b *Backend) String() string { return "zookeeper.Backend{…}" }

// GoString returns the same text as String.
func (b *Backend) GoString() string { return b.String() }

// Format writes the same text as String, for every verb.
func (b *Backend) Format(f fmt.State, _ rune) { fmt.Fprint(f, b.String()) }

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.life.End()
	var ss []*session
	for _, sl := range b.slots {
		if sl.s != nil {
			ss = append(ss, sl.s)
		}
	}
	for req := range b.requests.All() {
		if req.kept != nil && (req.releasing || !req.Outlives()) {
			b.remaining[req.kept] = req.kept.remains()
		}
	}
	left := slices.Collect(maps.Values(b.remaining))
	b.mu.Unlock()
	removeRemaining(ss, left)
	var wg sync.WaitGroup
	for _, s := range ss {
		wg.Go(s.close)
	}
	wg.Wait()
	b.life.Wait()
	if b.borrowed != nil {
		b.borrowed.Free()
	}
	return nil
}

// removeRemaining removes the remaining nodes of fixed requests, each list in its order, before the
// sessions end: the end of a session does not remove them.
func removeRemaining(ss []*session, left [][]string) {
	if len(ss) == 0 || len(left) == 0 {
		return
	}
	s := ss[0]
	for _, other := range ss {
		if !s.State().Up {
			s = other
		}
	}
	kit.Within(deleteTimeout, func() {
		_ = each(len(left), func(i int) error {
			for _, at := range left[i] {
				s.deleteAnywhere(at)
			}
			return nil
		})
	})
}

// explain adds to an error of the server what a user can do about it, and to the error of a call
// whose context ended why no server answered it.
func (b *Backend) explain(ctx context.Context, err error) error {
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		if cause := b.fault.Err(); cause != nil {
			return fmt.Errorf("%w; %w", ctx.Err(), cause)
		}
		if conn.Later(err) {
			return err // it says why the servers refused the call meanwhile
		}
		return ctx.Err()
	}
	return conn.Explain(err)
}
