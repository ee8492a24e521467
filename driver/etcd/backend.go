package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// The TTLs that a cluster keeps. A server raises a TTL that is below its own minimum, so 2 s are
// always kept. It refuses more than 285 years, and the lease of a tombstone takes two TTLs.
const minTTL, maxTTL = 2 * time.Second, 100 * 365 * 24 * time.Hour

// Options configure [New]. The zero value is useful.
type Options struct {
	// Root is the beginning of all keys. A '/' is put behind it, so it must not end with one. In
	// keys % and / within it are escaped ("a/b" is written "a%2Fb"). Empty: "dlock".
	Root   string
	Prefix string // put before every name, with nothing between

	// Plain is the key that other software locks for a name, with {name} in the place of the name,
	// as in "/locks/{name}". Then dlock shares its locks with concurrency.Mutex,
	// concurrency.Election, etcdctl lock, etcdctl elect and the service v3lock, in their layout of
	// keys: see docs/etcd-plain.md. Empty: dlock's own layout.
	Plain string

	// Identity names the cluster, for contexts that carry holds between clients of one process.
	// Clients of one cluster must have the same Identity. Empty: the cluster is queried when it
	// matters. Nothing else identifies a cluster: neither addresses nor etcd's own cluster ID,
	// which is equal for all clusters that were started with the same names and URLs.
	Identity string

	// TokenBase is added to every token, for a fleet that moves here from a backend with greater
	// tokens, so that tokens go on growing. It must be the same for all clients that share locks,
	// and stay for good. At most 1<<62.
	TokenBase driver.Token
}

// Backend is a client of one etcd cluster. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Lister] and [driver.Notifier], whose contracts it keeps. New makes one;
// package dlock refuses the zero Backend.
type Backend struct {
	cluster // not a pointer: so a backend that New did not make has a nil life, which is over

	id      string // of this backend, in all of its keys
	caps    driver.Capabilities
	tokens  kit.TokenBase
	leases  *leases
	watches *watches

	mu         sync.Mutex
	requests   map[driver.ID]*ownRequest // of this client; they may stand in the queues
	losses     map[driver.ID]*ownRequest // lost holds, of which broken keys may be left
	tombstones kit.Tombstones            // IDs of requests that must not be revived
	names      map[string]*nameState
	notices    struct { // notices of breaks, to this client
		watch     *watch    // nil: none
		idleSince time.Time // when there was last a lease
	}
	keeping    bool      // the keeper runs
	nextExpiry time.Time // no hold expires before
	lastPurge  time.Time // of tombstones and names
	lost       func(driver.ID)
}

// New returns a backend over the connection of a client. The caller owns the client, which must
// stay open until Close has returned; Close leaves it open. New does not contact the cluster. The
// first Acquire does. If the server is a grpc-proxy, is older than 3.5, or keeps locks in another
// format, each Acquire fails with ErrUnsupported. Interceptors and credentials of the connection
// are used; a namespace on the client's KV is not. New fails with ErrInvalid if the client is nil
// or has no connection, if the root ends with '/', or if Plain does not have {name} once.
func New(client *clientv3.Client, o Options) (*Backend, error) {
	if client == nil {
		return nil, fmt.Errorf("%w options: the client is nil; make one with clientv3.New", driver.ErrInvalid)
	}
	return newBackend(client, o)
}

func newBackend(client *clientv3.Client, o Options) (*Backend, error) {
	if o.Root == "" {
		o.Root = "dlock"
	}
	if strings.HasSuffix(o.Root, "/") {
		return nil, fmt.Errorf("%w options: the root must not end with '/', which is added to it", driver.ErrInvalid)
	}
	tokens := kit.TokenBase(o.TokenBase)
	if err := tokens.Check(); err != nil {
		return nil, err
	}
	conn := client.ActiveConnection()
	if conn == nil {
		return nil, fmt.Errorf("%w options: the client has no connection; make one with clientv3.New", driver.ErrInvalid)
	}
	root, prefix := escape.Replace(o.Root)+"/", escape.Replace(o.Prefix)
	var keys *plainKeys
	if o.Plain != "" {
		var err error
		if keys, err = newPlainKeys(o.Plain, o.Prefix, o.Root); err != nil {
			return nil, err
		}
		root, prefix = plainRoot(o.Root), escape.Replace(keys.before)
	}
	base := root + prefix
	place := base
	b := &Backend{
		id: newBackendID(prefix), tokens: tokens,
		requests: map[driver.ID]*ownRequest{}, losses: map[driver.ID]*ownRequest{}, names: map[string]*nameState{},
		caps: driver.Capabilities{
			Backend: "etcd", Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true,
			Inspect: true, Durable: true, FailoverSafe: true,
			ServerEndsFixed: true, FixedOutlives: true, MinTTL: minTTL, MaxTTL: maxTTL,
		},
	}
	if keys != nil {
		c := &b.caps
		c.Format, c.Shared, c.Semaphores, c.Joins, c.FixedOutlives = "plain", false, false, false, false
		place = "%plain/" + keys.String() // whatever the root of the records
	}
	if o.Identity != "" {
		b.caps.Identity = o.Identity + "/" + place
	}
	b.connect(client, conn, base)
	b.plain = keys
	b.makeLeases()
	b.watches = newWatches(&b.cluster)
	return b, nil
}

// makeLeases makes the leases of the client, and sets the functions by which they call the backend.
func (b *Backend) makeLeases() {
	b.leases = newLeases(&b.cluster)
	b.leases.expect, b.leases.ended = b.expect, b.leaseEnded
	b.leases.began = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.startKeeper()
	}
}

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier].
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = lost
}

// String returns a text without secrets: it has nothing of the client's configuration, which has a
// password.
func (b *Backend) String() string { return "etcd.Backend{" + b.base + "}" }

// GoString returns the same text as String.
func (b *Backend) GoString() string { return b.String() }

// begin refuses a call that cannot succeed: the backend is closed, or the context has ended.
func (b *Backend) begin(ctx context.Context) error {
	if b.life.Over() {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// Close implements [driver.Backend]. It revokes the client's leases, which deletes all keys under
// them; the server refuses keys that arrive later. The leases of fixed requests that were granted
// stay, and end by themselves.
func (b *Backend) Close() error {
	b.mu.Lock()
	first := b.life.End() // under the lock: its holder knows whether the backend is closed
	b.mu.Unlock()
	if !first {
		return nil
	}
	b.life.Wait()
	b.leases.revokeAll(b.leasesToRevoke())
	if !b.owned {
		return nil
	}
	var err error
	if kit.Within(time.Second, func() { err = b.client.Close() }) {
		return err
	}
	return nil // the library's Close takes up to 5 s if no server answers
}

// leasesToRevoke returns the leases under which requests stand, but, where fixed requests outlive
// their client, not those of fixed requests that were granted and are not being released.
func (b *Backend) leasesToRevoke() []*lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	ls := b.leases.own()
	for _, rq := range b.requests {
		if b.caps.FixedOutlives && rq.Fixed && !rq.until.IsZero() && !rq.releasing {
			ls = slices.DeleteFunc(ls, func(l *lease) bool { return l == rq.lease })
		}
	}
	return ls
}
