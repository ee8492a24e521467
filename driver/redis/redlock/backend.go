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
	defaultRetryDelay  = 50 * time.Millisecond
)

// Options configure [New]. The zero value is useful.
type Options struct {
	Prefix string // before every name in the key space

	// NodeTimeout is how long one master has to answer, but never more than a tenth of the TTL. 0:
	// 250ms; at least 1ms.
	NodeTimeout time.Duration

	// RetryDelay is how long a waiter pauses before it retries, give or take half of it. It retries
	// sooner if the holder expires before. 0: 50ms; at least 1ms.
	RetryDelay time.Duration

	// MinUptime is how long a master must have been up before it accepts new holds; 0: no minimum.
	// The package comment has the reason, under Limits.
	MinUptime time.Duration
}

// Backend is a client of several independent masters. It implements [driver.Backend],
// [driver.Capable], [driver.Breaker] and [driver.Notifier], whose contracts it keeps. New makes
// one; package dlock refuses the zero Backend.
type Backend struct {
	masters  []*master
	majority int  // how many masters are more than half
	owned    bool // Close closes the clients
	space    keyspace.Space
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
// leaves open. There must be at least three, all different. New does not contact the masters yet.
// Its errors match [driver.ErrInvalid]. The clients' retry options have no effect. The clients
// should have ContextTimeoutEnabled: without it, a call to a master that hangs takes as long as the
// client's own timeouts. A [*redis.Ring] is refused, since it is not a single server.
func New(clients []redis.UniversalClient, o Options) (*Backend, error) {
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
	if len(clients) < 3 {
		return nil, fmt.Errorf("%w options: Redlock needs at least 3 masters, not %d", driver.ErrInvalid, len(clients))
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
	b.caps = driver.Capabilities{
		Backend: "redlock",
		Inspect: true, ServerEndsFixed: true, FixedOutlives: true, MinTTL: 500 * time.Millisecond, MaxTTL: conn.MaxTTL,
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
