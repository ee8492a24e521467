package redis

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

const (
	defaultGrantWindow = 3 * time.Second
	defaultKeepTokens  = 10 * time.Minute

	closeTimeout = 2 * time.Second // how long Close tries to release what still stands
)

// Options configure [New]. The zero value is useful.
type Options struct {
	Prefix string // before every name in the key space

	// GrantWindow limits how long a waiter whose client may have died holds a lock. Each client
	// asks for its first waiter of a name once a second. If it last asked longer ago than
	// GrantWindow, the grant expires after GrantWindow unless the client confirms it. 0: 3s; at
	// least 10ms.
	GrantWindow time.Duration

	// KeepTokens is how long the last token of a name is remembered after its last use. 0: 10
	// minutes; at least 1ms.
	KeepTokens time.Duration

	// Identity names the service, for contexts that carry holds between clients of one process.
	// Clients of one server and database must have the same Identity, all others different ones.
	// Empty: package dlock queries the servers when it matters.
	Identity string

	// WaitReplicas is how many replicas must have a grant before Acquire returns it; 0: none.
	// Without them the grant is released, and Acquire fails. This narrows the window in which a
	// failover loses a grant; it does not close it.
	WaitReplicas int
}

// Backend is a client of one Redis, Sentinel group or Cluster. It implements [driver.Backend],
// [driver.Capable], [driver.Breaker], [driver.Notifier], [driver.Lister] and [driver.Raiser], whose
// contracts it keeps. New makes one; package dlock refuses the zero Backend.
type Backend struct {
	rdb    redis.UniversalClient
	owned  bool // Close closes rdb
	space  keyspace.Space
	o      Options
	caps   driver.Capabilities
	common []any // the arguments that every script begins with
	pipes  *pipelines
	nodes  nodes
	life   *kit.Life

	mu           sync.Mutex // guards what follows
	lost         func(driver.ID)
	requests     kit.Requests[*ownRequest]
	waiters      kit.Waiters[*ownRequest, struct{}]
	round        uint64 // how often all waiters were woken
	subscription subscription
}

// New returns a backend over a client that the caller owns, and that Close leaves open. It does not
// contact the server yet. Its errors match [driver.ErrInvalid]. From go-redis 9.19.0 on, the
// client's retry options have no effect. A [*redis.Ring] is refused: it sends subscriptions to
// another server than scripts, and names to other servers once one of them seems to be down.
func New(rdb redis.UniversalClient, o Options) (*Backend, error) {
	if err := conn.RefuseRing(rdb); err != nil {
		return nil, err
	}
	return newBackend(rdb, o, "redis")
}

func newBackend(rdb redis.UniversalClient, o Options, scheme string) (*Backend, error) {
	if o.GrantWindow == 0 {
		o.GrantWindow = defaultGrantWindow
	}
	if o.KeepTokens == 0 {
		o.KeepTokens = defaultKeepTokens
	}
	if o.GrantWindow < 10*time.Millisecond || o.KeepTokens < time.Millisecond || o.WaitReplicas < 0 {
		return nil, fmt.Errorf("%w options: the grant window must be at least 10ms, tokens must be kept for at least 1ms, and the number of replicas must not be negative", driver.ErrInvalid)
	}
	b := &Backend{
		rdb: rdb, o: o, space: keyspace.New(o.Prefix), pipes: newPipelines(rdb), life: kit.NewLife(),
		requests: kit.NewRequests(func(r kit.OwnRequest) *ownRequest { return &ownRequest{OwnRequest: r} }),
		caps: driver.Capabilities{
			Backend: scheme,
			Queue:   true, Fencing: true, Raises: true, Shared: true, Semaphores: true, Joins: true,
			Inspect: true, Durable: true, ServerEndsFixed: true, FixedOutlives: true,
			MinTTL: 50 * time.Millisecond, MaxTTL: conn.MaxTTL,
		},
	}
	if o.Identity != "" {
		b.caps.Identity = fmt.Sprintf("%q %s", o.Identity, o.Prefix)
	}
	b.nodes.cluster, _ = rdb.(*redis.ClusterClient)
	b.waiters = kit.NewWaiters[*ownRequest, struct{}](&b.mu, checkInterval)
	b.common = []any{b.space.Channels(), o.KeepTokens.Milliseconds(), o.GrantWindow.Microseconds()}
	return b, nil
}

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier]. The server publishes holds that were ended by force.
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = lost
}

// call returns a call of a script on a name. All scripts begin with the same arguments.
func (b *Backend) call(s *script.Script, name string, args ...any) *call {
	key, queue := b.space.Keys(name)
	return newCall(s, key, queue, b.common, args)
}

// ask runs a call that needs no clean-up.
func (b *Backend) ask(ctx context.Context, name string, c *call) (any, error) {
	if b.life.Over() {
		return nil, driver.ErrClosed
	}
	reply, err := b.pipes.run(ctx, b.life.Closed(), c)
	return reply, b.explain(ctx, name, err)
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	b.mu.Lock()
	first := b.life.End()
	b.mu.Unlock()
	if !first {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	b.life.Wait()
	var calls []*call
	b.mu.Lock()
	for _, m := range b.requests.Left() {
		calls = append(calls, b.releaseCall(m.OwnRequest.Request, m.Uncertain, m.Until))
	}
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range calls {
		wg.Go(func() { _, _ = b.pipes.run(ctx, nil, c) })
	}
	wg.Wait()
	end, _ := ctx.Deadline()
	// Close waits no longer than that: a connection that is just being opened ignores contexts, and
	// ends with the client library's timeout.
	kit.Within(time.Until(end), b.subscription.tasks.Wait)
	b.nodes.close()
	if b.owned {
		return conn.Close(b.rdb)
	}
	return nil
}
