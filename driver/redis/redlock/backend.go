package redlock

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
)

const (
	defaultNodeTimeout = 250 * time.Millisecond
	lonelyNodeTimeout  = 3 * time.Second // of a single master
	defaultRetryDelay  = 50 * time.Millisecond
)

// Options configure [New]. The zero value is useful.
type Options struct {
	Prefix string // before every name in the key space

	// NodeTimeout is how long one master has to answer, but never more than a tenth of the TTL. 0:
	// 250ms; at least 1ms. If there is only one, it is never more than a third of the TTL, and 0
	// means 3s.
	NodeTimeout time.Duration

	// RetryDelay is how long a waiter pauses before it retries, give or take half of it. It retries
	// sooner if the holder expires before. 0: 50ms; at least 1ms.
	RetryDelay time.Duration

	// MinUptime is how long a master must have been up before it accepts new holds; 0: no minimum.
	// The package comment has the reason, under Limits.
	MinUptime time.Duration

	// Key, such as "lock:{name}", shares the locks with other software that takes them by SET key
	// value NX PX, and has the name of the lock where the pattern has {name}. The package comment
	// has more, under Other software. Empty: keys that only dlock uses.
	Key string
}

// Backend is a client of several independent masters. It implements [driver.Backend],
// [driver.Capable], [driver.Breaker] and [driver.Notifier], whose contracts it keeps. New makes
// one; package dlock refuses the zero Backend.
type Backend struct {
	masters  []*master
	majority int  // how many masters are more than half
	owned    bool // Close closes the clients
	space    keyspace.Space
	layout   *layout
	o        Options
	caps     driver.Capabilities
	life     *kit.Life

	mu       sync.Mutex
	requests map[driver.ID]*ownRequest // those that may stand on masters, without pending releases
	notify   func(driver.ID)
	listens  bool // to the masters' messages of breaks
}

// master is one of the servers.
type master struct {
	rdb   redis.UniversalClient
	where string

	// Backend.mu guards what follows.
	pending   map[driver.ID]*pendingRelease
	releasing bool       // a goroutine sends the pending releases
	wake      kit.Signal // there is a new release
}

// New returns a backend over clients that the caller owns, one for each master, and that Close
// leaves open. There must be at least three, all different. With the option Key one is enough,
// which may be a client of Sentinel or of a Cluster. New does not contact the masters yet.
// Its errors match [driver.ErrInvalid]. The clients' retry options have no effect. The clients
// should have ContextTimeoutEnabled: without it, a call to a master that hangs takes as long as the
// client's own timeouts. A [*redis.Ring] is refused, since it is not a single server.
func New(clients []redis.UniversalClient, o Options) (*Backend, error) {
	if o.NodeTimeout == 0 && len(clients) == 1 {
		o.NodeTimeout = lonelyNodeTimeout
	}
	if o.NodeTimeout == 0 {
		o.NodeTimeout = defaultNodeTimeout
	}
	if o.RetryDelay == 0 {
		o.RetryDelay = defaultRetryDelay
	}
	if o.NodeTimeout < time.Millisecond || o.RetryDelay < time.Millisecond || o.MinUptime < 0 {
		return nil, fmt.Errorf("%w options: the node timeout and the retry delay must be at least 1ms, and the minimum uptime must not be negative",
			driver.ErrInvalid)
	}
	if least := map[bool]int{true: 3, false: 1}[o.Key == ""]; len(clients) < least {
		return nil, fmt.Errorf("%w options: Redlock needs at least %d masters, not %d", driver.ErrInvalid, least, len(clients))
	}
	b := &Backend{
		majority: len(clients)/2 + 1, space: keyspace.New(o.Prefix), o: o,
		life: kit.NewLife(), requests: map[driver.ID]*ownRequest{},
	}
	var addrs []string
	for _, c := range clients {
		if err := conn.RefuseRing(c); err != nil {
			return nil, err
		}
		where := address(c)
		if slices.Contains(addrs, where) {
			return nil, fmt.Errorf("%w options: the master %s is named twice", driver.ErrInvalid, where)
		}
		addrs = append(addrs, where)
		b.masters = append(b.masters, &master{rdb: c, where: where, pending: map[driver.ID]*pendingRelease{}, wake: kit.NewSignal()})
	}
	var err error
	if b.layout, err = newLayout(o, clients); err != nil {
		return nil, err
	}
	b.caps = driver.Capabilities{
		Backend: "redlock", Format: b.layout.format,
		Shared: true, Joins: true, Inspect: true, ServerEndsFixed: true, FixedOutlives: true, MinTTL: 500 * time.Millisecond, MaxTTL: conn.MaxTTL,
	}
	if b.single() {
		b.caps.Backend, b.caps.Durable, b.caps.MinTTL = "redis", true, 100*time.Millisecond
	}
	return b, nil
}

// address returns the address of the master, for errors.
func address(rdb redis.UniversalClient) string {
	if addr, _, ok := conn.Address(rdb); ok {
		return addr
	}
	return fmt.Sprintf("%p", rdb)
}

// checkName returns why there can be no call about the name.
func (b *Backend) checkName(name string) error {
	if b.life.Over() {
		return driver.ErrClosed
	}
	return b.layout.check(name)
}

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier]. The backend subscribes to the client's channel on all
// masters at its first request.
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notify = lost
}

// Close implements [driver.Backend]. Masters that hang delay it by up to four seconds. Their holds
// expire.
func (b *Backend) Close() error {
	b.mu.Lock()
	first := b.life.End()
	b.mu.Unlock()
	if !first {
		return nil
	}
	// Clients of the caller may ignore the end of a context.
	kit.Within(time.Second, b.life.Wait)
	b.releaseAll()
	if !b.owned {
		return nil
	}
	var clients []redis.UniversalClient
	for _, m := range b.masters {
		clients = append(clients, m.rdb)
	}
	return conn.Close(clients...)
}
