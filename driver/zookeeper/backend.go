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
	// Chroot is the path under which everything stands, clean and absolute, as "/teams/shop". It is
	// made if it is missing. Empty: the root.
	Chroot string
	// Prefix is the name of the node there, encoded as the names of locks are, 255 bytes at most.
	// Empty: dlock.
	Prefix string
	// ACL is that of all nodes that are created. Empty: everybody may do everything.
	ACL []zk.ACL
	// Identity names the servers, for contexts that carry holds between clients of one process:
	// clients of the same servers have the same. Empty: the servers are asked when it matters.
	Identity string
	// JuteMaxBuffer is the servers' jute.maxbuffer, in bytes, 32 KiB at least. A client cannot ask
	// for it. It bounds what one session owns, since the end of a session is one transaction. 0:
	// 1,048,575, which is that of servers where it is not set. One that is too small costs
	// sessions, or room in the only one; one that is too large endangers the servers.
	JuteMaxBuffer int
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
	o        options
	borrowed *conn.Conn // the user's connection; nil: the backend makes its own
	fault    *conn.Fault
	id       driver.ID
	root     string // the path above locks and sessions
	checks   int    // how many holds one proof checks
	caps     driver.Capabilities
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
	remaining  map[*kept][]string // what is being removed of fixed requests
}

// New returns a backend over the user's own connection. Close leaves that open, and removes what
// dlock created in its session. New waits until the connection has a session, for ten seconds or
// until ctx ends. It returns an error if there is none, or if the session may not create what it
// has to; driver.ErrUnsupported if what stands on the servers is of another format; ErrInvalid if
// the connection was not made by [Connect], if it serves a backend that is not closed, or if an
// option is not as its comment says.
//
// The greatest TTL is that which the connection's session allows, 3/4 of its timeout, less of one
// below 20 s, and the least is half of that: a holder that died is freed at the session's timeout,
// whatever its TTL was. A request for which the session has no room is refused: it owns paths of
// half of JuteMaxBuffer. If that session is lost so are the leases; the client goes on with the
// next session that the connection gets.
func New(ctx context.Context, c *Conn, o Options) (*Backend, error) {
	if c == nil || c.c == nil {
		return nil, fmt.Errorf("%w connection: zookeeper.Connect makes one that New can stand on", driver.ErrInvalid)
	}
	b, err := newBackend(options{Options: o, scheme: "zookeeper", sessions: 1})
	if err != nil {
		return nil, err
	}
	if !c.c.Take() {
		return nil, fmt.Errorf("%w connection: it serves another backend, which is not closed; make another connection, or share that backend", driver.ErrInvalid)
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
		return nil, fmt.Errorf("%w options: the chroot is a clean absolute path, and the prefix has at most 255 bytes and is not zookeeper's own node", driver.ErrInvalid)
	}
	b := &Backend{
		o: o, id: driver.NewID(), root: o.Chroot + "/" + encode(o.Prefix), seed: maphash.MakeSeed(), fault: &conn.Fault{},
		life: kit.NewLife(), slots: map[class]*slot{}, requests: kit.NewRequests(newOwnRequest),
		remaining: map[*kept][]string{},
		caps: driver.Capabilities{
			Backend: o.scheme, Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true, Inspect: true, Durable: true,
			FixedOutlives: true, MaxFixed: maxFixed,
		},
	}
	if o.Identity != "" {
		b.caps.Identity = fmt.Sprintf("%q%s", o.Identity, b.root) // the path is the queues'
	}
	return b, b.checkSizes()
}

// setBounds sets the TTLs that are allowed, in whole milliseconds, which are easier to read than
// what follows from a timeout.
func (b *Backend) setBounds(least, most time.Duration) {
	b.caps.MinTTL = (least + time.Millisecond - 1).Truncate(time.Millisecond)
	b.caps.MaxTTL = most.Truncate(time.Millisecond)
}

// maxFixed is the greatest TTL of a fixed request, which no session bounds.
const maxFixed = 24 * time.Hour

// checkTTL returns an error if no session keeps a lease of the request's TTL, or the TTL is none of
// a fixed one.
func (b *Backend) checkTTL(r driver.Request) error {
	check := kit.CheckTTL
	if r.Fixed {
		check = kit.CheckFixed
	}
	if err := check(r.TTL, b.caps); err != nil {
		return fmt.Errorf("%w by the servers' sessions (docs/zookeeper.md tells why)", err)
	}
	return nil
}

// locks returns what the paths of all directories begin with.
func (b *Backend) locks() string { return b.root + "/locks/" }

// dir returns the path of a name's directory.
func (b *Backend) dir(name string) string { return b.locks() + encode(name) }

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

// removeRemaining removes what is left of fixed requests, each in its order, before their sessions
// end: no session's end removes it.
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

// explain says what a user can do about an error of the server, and why no server answered a call
// whose context ended.
func (b *Backend) explain(ctx context.Context, err error) error {
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		if cause := b.fault.Err(); cause != nil {
			return fmt.Errorf("%w; %w", ctx.Err(), cause)
		}
		if conn.Later(err) {
			return err // it says what the servers refused meanwhile
		}
		return ctx.Err()
	}
	return conn.Explain(err)
}
