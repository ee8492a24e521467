package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// The TTLs that a cluster keeps: one that asks for less than its least gets that, so 2 s are as
// good as kept; and etcd refuses more than 285 years, of which a tombstone takes two TTLs.
const minTTL, maxTTL = 2 * time.Second, 100 * 365 * 24 * time.Hour

// Options configure [New]. The zero value is useful.
type Options struct {
	// what all keys begin with, before a '/', in which it does not end; written with % and /
	// escaped ("a/b" as "a%2Fb"); empty: "dlock"
	Root   string
	Prefix string // put before every name, with nothing between

	// Identity names the queues, for contexts that carry holds between clients of one process:
	// clients of the same queues have the same. Empty: the client, so that another client of the
	// same cluster is taken for one of other queues.
	Identity string
}

// Backend is a client of one etcd cluster. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Lister] and [driver.Notifier], whose contracts it keeps.
type Backend struct {
	client *clientv3.Client
	owned  bool // Close closes the client
	kv     pb.KVClient
	leases pb.LeaseClient
	watch  pb.WatchClient
	status pb.MaintenanceClient
	lines  *lines // the connections; nil: they are the user's
	id     string // of this backend: its keys have it
	// what all keys begin with: root/prefix, both escaped, so that no root is within another
	base   string
	caps   driver.Capabilities
	txns   combiner
	alive  keepAlives
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // what goes on in the background
	tasked sync.Mutex     // so that nothing begins after Close

	// has a token in it while somebody finds out what the cluster is
	met     chan struct{}
	verdict atomic.Pointer[verdict] // on the cluster; nil: none yet
	probing atomic.Bool             // a connection is suspected

	mu     sync.Mutex
	closed bool
	mine   map[driver.ID]*mine     // what may stand in the queues
	buried map[driver.ID]time.Time // what is gone and could be sent again; until when
	names  names
	hub    hub
	pools  map[int64]*pool  // leases by class
	fixed  map[*lease]bool  // leases of one request
	graves map[int64]*lease // unkept leases by class, for tombstones
	keeper bool             // there is a goroutine that keeps the leases
	sweep  time.Time        // no hold expires before
	tidied time.Time        // when what is over was last looked for
	lost   func(driver.ID)
}

// mine is a request of this client that may stand in a queue. The backend's mu guards what changes.
type mine struct {
	r    driver.Request
	turn chan struct{} // of the one Acquire that is at work on it
	wake chan struct{} // has a token in it if there is news for that

	slot      int
	key       string // "": none yet
	lease     *lease // nil: none
	rev       int64  // the revision that put the key; 0: it is not known to stand
	uncertain bool   // a copy of its acquire may be under way
	checked   bool   // what stood ahead of it was of the same kind
	waiting   bool   // it waits, and has its lease kept alive
	granted   bool   // the queue lets it in
	refusal   error
	until     time.Time // the end of trust; zero: Acquire has not returned its grant
	tries     int       // releases that were sent and not answered
	leaving   bool      // a release of it was asked for
	missing   bool      // and it is not there any more
	over      bool      // it was released, given up or lost
}

// ends reports whether nothing may be put for the request any more. The backend's mu is held.
func (m *mine) ends() bool { return m.over || m.leaving }

func (m *mine) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// New returns a backend over the connection of a client, which the caller owns and Close leaves
// open; the client has to stay open until after Close. It does not reach the cluster yet: the first
// Acquire does, and is ErrUnsupported each time if that is a grpc-proxy or older than 3.5.
// Interceptors and credentials of the connection are used; a namespace put over the client's KV is
// not. The error is ErrInvalid: the client is nil or has no connection, or the root ends in '/'.
func New(client *clientv3.Client, o Options) (*Backend, error) {
	if client == nil {
		return nil, fmt.Errorf("%w options: New needs a client; make it with clientv3.New", driver.ErrInvalid)
	}
	if o.Identity == "" {
		o.Identity = fmt.Sprintf("%p", client)
	}
	return newBackend(client, o)
}

func newBackend(client *clientv3.Client, o Options) (*Backend, error) {
	if o.Root == "" {
		o.Root = "dlock"
	}
	if strings.HasSuffix(o.Root, "/") {
		return nil, fmt.Errorf("%w options: a root does not end in '/': that is put behind it", driver.ErrInvalid)
	}
	conn := client.ActiveConnection()
	if conn == nil {
		return nil, fmt.Errorf("%w options: the client has no connection; make it with clientv3.New", driver.ErrInvalid)
	}
	id, base := driver.NewID().String()[:16], escape.Replace(o.Root)+"/"+escape.Replace(o.Prefix)
	b := &Backend{
		client: client, kv: pb.NewKVClient(conn), leases: pb.NewLeaseClient(conn), watch: pb.NewWatchClient(conn), status: pb.NewMaintenanceClient(conn),
		id: id, base: base, met: make(chan struct{}, 1),
		mine: map[driver.ID]*mine{}, buried: map[driver.ID]time.Time{}, names: names{},
		pools: map[int64]*pool{}, fixed: map[*lease]bool{}, graves: map[int64]*lease{},
		caps: driver.Capabilities{
			Backend: "etcd", Identity: o.Identity + "/" + base, Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true,
			Inspect: true, Durable: true, ServerEndsFixed: true, FixedOutlives: true, MinTTL: minTTL, MaxTTL: maxTTL,
		},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.txns.kv, b.txns.ctx, b.txns.late = b.kv, b.ctx, b.suspect
	b.alive.b, b.hub.b, b.hub.watches = b, b, map[int64]*name{}
	return b, nil
}

// spawn has f run in the background, unless the backend is closed.
func (b *Backend) spawn(f func()) bool {
	b.tasked.Lock()
	defer b.tasked.Unlock()
	if b.ctx.Err() != nil {
		return false
	}
	b.tasks.Go(f)
	return true
}

// String returns what shows no secret: the client's configuration, which has a password in it, is
// not part of it.
func (b *Backend) String() string { return "etcd.Backend{" + b.base + "}" }

// GoString is String.
func (b *Backend) GoString() string { return b.String() }

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier].
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = lost
}

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	if r.TTL < minTTL || r.TTL > maxTTL {
		return driver.Grant{}, fmt.Errorf("%w TTL %s: etcd keeps %s to %s", driver.ErrInvalid, r.TTL, minTTL, maxTTL)
	}
	if err := outlast(ctx, r, func() error { return b.meet(ctx) }); err != nil {
		return driver.Grant{}, err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	}
	if time.Now().Before(b.buried[r.ID]) {
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrLost
	}
	m := b.mine[r.ID]
	if m == nil {
		m = &mine{r: r, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
		b.mine[r.ID] = m
	}
	b.mu.Unlock()
	select {
	case m.turn <- struct{}{}:
		// also if ctx has ended: what was put in the books is taken out below
	default:
		select {
		case m.turn <- struct{}{}:
		case <-ctx.Done():
			return driver.Grant{}, ctx.Err()
		}
	}
	defer func() { <-m.turn }()
	g, err := b.acquire(ctx, m)
	if err == nil {
		return g, nil
	}
	// it may have stood for a moment; what fails here goes on in the background
	if errors.Is(err, driver.ErrConflict) {
		_, _ = b.remove(ctx, m)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return driver.Grant{}, driver.ErrClosed // Close removes it
	}
	if !m.over && !(m.leaving && m.until.IsZero()) { // else Release removes it
		b.giveUp(m)
	}
	return driver.Grant{}, err
}

func (b *Backend) acquire(ctx context.Context, m *mine) (driver.Grant, error) {
	b.mu.Lock()
	over, held := m.over, !m.until.IsZero()
	b.mu.Unlock()
	switch {
	case over:
		return driver.Grant{}, driver.ErrLost
	case held:
		p := b.Renew(ctx, []driver.Request{m.r})[0]
		return driver.Grant{Token: m.token(), TTL: p.TTL, SentAt: p.SentAt}, p.Err
	}
	for {
		var err error
		switch {
		case m.r.Join():
			err = b.join(ctx, m)
		case m.r.Wait:
			err = b.line(ctx, m)
		default:
			err = b.try(ctx, m)
		}
		if err != nil {
			return driver.Grant{}, err
		}
		g, err := b.hold(ctx, m)
		if !errors.Is(err, errAgain) {
			return g, err
		}
	}
}

// errAgain: the request's lease ended before it could be granted.
var errAgain = errors.New("again")

// token returns the fencing token of a request that stands.
func (m *mine) token() driver.Token {
	if m.r.Join() {
		return m.r.Token
	}
	return driver.Token(m.rev)
}

// hold makes a request that the queue lets in a hold.
func (b *Backend) hold(ctx context.Context, m *mine) (driver.Grant, error) {
	for {
		b.mu.Lock()
		l := m.lease
		if m.ends() {
			b.mu.Unlock()
			return driver.Grant{}, driver.ErrLost
		}
		if m.rev == 0 || l == nil {
			b.mu.Unlock()
			return driver.Grant{}, errAgain
		}
		if l.fresh() && (!l.fixed || !m.waiting) {
			b.left(m)
			m.until = l.since.Add(l.ttl)
			if b.sweep.After(m.until) {
				b.sweep = m.until
			}
			g := driver.Grant{Token: m.token(), TTL: l.ttl, SentAt: l.since}
			b.mu.Unlock()
			return g, nil
		}
		b.mu.Unlock()
		if err := outlast(ctx, m.r, func() error { return b.refresh(ctx, l) }); errors.Is(err, driver.ErrLost) {
			continue
		} else if err != nil {
			return driver.Grant{}, err
		}
		b.mu.Lock()
		b.left(m) // of a fixed lease all of the time is there now
		b.mu.Unlock()
	}
}

// vanished takes note that a request does not stand any more. One that waits goes back to the end
// of the queue; b.mu is held.
func (b *Backend) vanished(m *mine) {
	switch {
	case m.leaving: // by that
		m.missing = true
		return
	case !m.until.IsZero():
		b.lose(m, true)
		return
	}
	b.left(m)
	m.rev, m.granted, m.checked = 0, false, false
	if m.lease != nil && m.lease.gone {
		m.uncertain = false // a copy could put nothing under it
		m.leave()
	}
	m.poke()
}

// finish takes a request out of the books. b.mu is held.
func (b *Backend) finish(m *mine) {
	m.over = true
	b.left(m)
	delete(b.mine, m.r.ID)
	m.poke()
}

// bury keeps the ID of a request that must not come to life again. b.mu is held.
func (b *Backend) bury(id driver.ID, ttl time.Duration) {
	b.buried[id] = time.Now().Add(2*ttl + time.Second)
	b.keeping()
}

// lose is the end of a hold that was not given back. b.mu is held.
func (b *Backend) lose(m *mine, tell bool) {
	b.bury(m.r.ID, m.r.TTL)
	b.giveUp(m)
	if lost := b.lost; lost != nil && tell {
		go lost(m.r.ID)
	}
}

// giveUp removes a request of which nobody will hear any more. b.mu is held.
func (b *Backend) giveUp(m *mine) {
	b.finish(m)
	if m.uncertain {
		b.bury(m.r.ID, m.r.TTL)
	}
	b.spawn(func() { b.settle(m) })
}

// settle removes a request's key, however long it takes: it is a goroutine for each such request,
// until the server answers.
func (b *Backend) settle(m *mine) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if _, err := b.remove(b.ctx, m); err == nil || pause(b.ctx, wait) != nil {
			return
		}
	}
}

// expire drops the holds that were not renewed in time: under a shared lease they would stand for
// ever. b.mu is held.
func (b *Backend) expire(now time.Time) {
	if !now.After(b.sweep) {
		return
	}
	b.sweep = now.Add(time.Hour)
	for _, m := range b.mine {
		switch {
		case m.until.IsZero():
		case now.After(m.until):
			b.lose(m, false)
		case m.until.Before(b.sweep):
			b.sweep = m.until
		}
	}
}

// tidy forgets what is over. b.mu is held.
func (b *Backend) tidy(now time.Time) {
	for id, until := range b.buried {
		if now.After(until) {
			delete(b.buried, id)
		}
	}
	b.names.idle(b, now)
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	m := b.mine[r.ID]
	if r.Uncertain {
		b.bury(r.ID, r.TTL)
	}
	if m == nil {
		b.mu.Unlock()
		return driver.ErrLost
	}
	m.uncertain, m.leaving = m.uncertain || r.Uncertain, true
	if !m.until.IsZero() && time.Now().After(m.until) {
		b.lose(m, false)
		b.mu.Unlock()
		return driver.ErrLost
	}
	waits := m.until.IsZero()
	b.mu.Unlock()
	if waits { // its Acquire ends first, so that nothing is put after it was removed
		m.poke()
		select {
		case m.turn <- struct{}{}:
		case <-ctx.Done():
			b.spawn(func() { b.drop(m) })
			return ctx.Err()
		case <-b.ctx.Done():
			return driver.ErrClosed
		}
		defer func() { <-m.turn }()
		b.mu.Lock()
		over := m.over
		b.mu.Unlock()
		if over {
			return driver.ErrLost
		}
	}
	was, err := b.remove(ctx, m)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		if waits && !m.over {
			b.giveUp(m)
		}
		return err
	}
	// in the second case an earlier copy did it, since nothing else can have
	if was || m.tries > 0 && time.Now().Before(m.until) {
		return nil
	}
	return driver.ErrLost
}

// drop gives a request up once its Acquire has ended.
func (b *Backend) drop(m *mine) {
	select {
	case m.turn <- struct{}{}:
	case <-b.ctx.Done():
		return
	}
	defer func() { <-m.turn }()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !m.over {
		b.giveUp(m)
	}
}

// Close implements [driver.Backend]. It revokes the client's leases, and with them goes whatever
// stands or arrives under them. Those of fixed requests that were granted it leaves: they end by
// themselves.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.tasked.Lock()
	b.cancel()
	b.tasked.Unlock()
	b.mu.Unlock()
	b.tasks.Wait() // each ends with the context
	b.mu.Lock()
	left := make([]*lease, 0, len(b.fixed))
	for l := range b.fixed {
		left = append(left, l)
	}
	for _, m := range b.mine {
		if m.r.Fixed && !m.until.IsZero() && !m.leaving {
			left = slices.DeleteFunc(left, func(l *lease) bool { return l == m.lease })
		}
	}
	for _, p := range b.pools {
		left = append(left, p.leases...)
	}
	b.mu.Unlock()
	b.revokeAll(left)
	if !b.owned {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- b.client.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Second): // it wants to say goodbye, for up to 5 s if nobody listens
		return nil
	}
}

func (b *Backend) revokeAll(ls []*lease) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	queue := make(chan *lease, len(ls))
	for _, l := range ls {
		queue <- l
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(16, len(ls)) {
		wg.Go(func() {
			for l := range queue {
				for ctx.Err() == nil && b.revokeOnce(ctx, l) != nil {
					_ = pause(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
}

func (b *Backend) revokeOnce(ctx context.Context, l *lease) error {
	ctx, cancel := context.WithTimeout(ctx, firstTry)
	defer cancel()
	return b.revoke(ctx, l)
}
