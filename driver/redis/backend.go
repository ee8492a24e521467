package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// Options configure [New]. The zero value is useful.
type Options struct {
	Prefix      string        // before every name in the key space
	GrantWindow time.Duration // how long a waiter that was granted has to confirm it; 0: 1s
	// how long the last token of a name is remembered after its last use; 0: 10 minutes
	KeepTokens time.Duration

	// Identity names the queues, for contexts that carry holds between clients of one process:
	// clients of the same queues have the same. Empty: the address of the client, as far as it
	// tells (one for Sentinel does not).
	Identity string

	// WaitReplicas is how many replicas have to have a grant before Acquire returns it; without
	// them it is given back, and an error. It narrows the window in which a failover forgets a
	// grant; it does not close it.
	WaitReplicas int
}

// Backend is a client of one Redis, Sentinel group or Cluster. It implements [driver.Backend],
// [driver.Capable], [driver.Breaker], [driver.Notifier] and [driver.Lister], whose contracts it
// keeps.
type Backend struct {
	rdb    redis.UniversalClient
	owned  bool // Close closes rdb
	space  keyspace.Space
	o      Options
	caps   driver.Capabilities
	common []any // the arguments that every script begins with
	conv   *conveyor
	ctx    context.Context // ends with Close
	stop   <-chan struct{} // its Done
	cancel context.CancelFunc
	tasks  sync.WaitGroup // what goes on in the background

	mu     sync.Mutex
	closed bool
	lost   func(driver.ID)
	mine   map[driver.ID]*mine // what may stand in the queues
	names  map[string]*group   // those who wait, by name
	round  uint64              // how often all who wait were woken
	ears   ears
}

// mine is a request of this client that may stand in a queue. The backend's mu guards it.
type mine struct {
	r         driver.Request
	asking    int       // calls of Acquire under way
	stands    bool      // the server said that it stands in the queue
	told      bool      // there was a message about it since it last asked
	until     time.Time // it cannot have expired before; zero: it was not granted
	uncertain bool      // a copy of its acquire may be under way
	outlives  bool      // it was granted, Fixed, and nobody gave it back: Close leaves it
	releases  int       // how often a release of it was sent
}

// New returns a backend over a client that the caller owns, and that Close leaves open. It does not
// reach the server yet. The client's retry options do not matter. A [*redis.Ring] is refused: it
// sends the subscription elsewhere than the scripts, and each name to another server as soon as one
// of them seems to be down.
func New(rdb redis.UniversalClient, o Options) (*Backend, error) {
	if err := conn.RefuseRing(rdb); err != nil {
		return nil, err
	}
	if o.Identity == "" {
		o.Identity = identity(rdb)
	}
	return newBackend(rdb, o, "redis")
}

func newBackend(rdb redis.UniversalClient, o Options, scheme string) (*Backend, error) {
	if o.GrantWindow == 0 {
		o.GrantWindow = time.Second
	}
	if o.KeepTokens == 0 {
		o.KeepTokens = 10 * time.Minute
	}
	if o.GrantWindow < 10*time.Millisecond || o.KeepTokens < time.Millisecond || o.WaitReplicas < 0 {
		return nil, fmt.Errorf("%w options: the grant window is at least 10ms, tokens are kept for at least 1ms, and replicas are not negative", driver.ErrInvalid)
	}
	b := &Backend{
		rdb: rdb, o: o, space: keyspace.New(o.Prefix), conv: newConveyor(rdb),
		mine: map[driver.ID]*mine{}, names: map[string]*group{},
		caps: driver.Capabilities{
			Backend: scheme, Identity: o.Identity + "/" + o.Prefix, Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true,
			Inspect: true, Durable: true, ServerEndsFixed: true, FixedOutlives: true, MinTTL: 50 * time.Millisecond, MaxTTL: conn.MaxTTL,
		},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.stop = b.ctx.Done()
	b.common = []any{b.space.Channels(), o.KeepTokens.Milliseconds(), o.GrantWindow.Microseconds()}
	return b, nil
}

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier]: the server tells of a hold that was ended by force.
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = lost
}

func (b *Backend) call(s *script.Script, name string, args ...any) *call {
	return newCall(s, []string{b.space.Key(name)}, slices.Concat(b.common, args)...)
}

// checkTTL refuses a TTL that is not kept.
func checkTTL(d time.Duration, c driver.Capabilities) error {
	if d < c.MinTTL || d > c.MaxTTL {
		return fmt.Errorf("%w TTL of %s; %s to %s are allowed", driver.ErrInvalid, d, c.MinTTL, c.MaxTTL)
	}
	return nil
}

func acquireArgs(r driver.Request, resume bool) []any {
	mode, flags, wait := "x", "-", "0"
	if r.Mode == driver.Shared {
		mode = "s"
	}
	if r.Fixed {
		flags = "f"
	}
	switch {
	case resume:
		wait = "-1"
	case r.Wait:
		wait = "1"
	}
	return []any{r.ID.String(), r.Owner.String(), mode, r.Limit, r.TTL.Microseconds(), r.Client.String(), flags, wait, r.Label}
}

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := checkTTL(r.TTL, b.caps); err != nil {
		return driver.Grant{}, err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	}
	m := b.mine[r.ID]
	if m == nil {
		m = &mine{r: r}
		b.mine[r.ID] = m
	}
	m.asking++
	b.mu.Unlock()
	g, err := b.acquire(ctx, m, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	m.asking--
	if b.closed {
		return driver.Grant{}, driver.ErrClosed // Close removes it
	}
	if err != nil {
		b.giveUp(m)
		return driver.Grant{}, b.explain(ctx, r.Name, err)
	}
	m.outlives = r.Fixed
	return g, nil
}

func (b *Backend) acquire(ctx context.Context, m *mine, r driver.Request) (driver.Grant, error) {
	var w *waiter
	defer func() {
		if w != nil {
			b.leave(w)
		}
	}()
	heard := time.Now() // of the server; at first, when it was asked
	failed := false     // the line did since then
	for {
		b.mu.Lock()
		// what was granted is not asked for anew: it may have expired
		resume, round, told := !m.until.IsZero(), b.round, m.told
		m.told = false
		b.mu.Unlock()
		run := acquireScript
		if resume || w != nil {
			run = confirmScript
		}
		c := b.call(run, r.Name, acquireArgs(r, resume)...)
		asked := time.Now()
		reply, err := b.run(ctx, c)
		var a verdict
		if err == nil {
			a, err = parseAcquire(reply)
		}
		b.mu.Lock()
		m.uncertain = m.uncertain || c.copies > 1 || c.copies == 1 && err != nil && !final(err)
		switch {
		case err != nil && isNo(err):
			m.stands = false
		case err == nil && a.again:
			m.stands = false
		case err == nil:
			m.stands = true
			if a.granted {
				m.until = c.sent.Add(r.TTL)
				// the message went unheard, as may have those to who came in with it
				if w != nil && !told && !m.told && r.Mode == driver.Shared {
					b.names[r.Name].wake()
				}
			}
		}
		b.mu.Unlock()
		if w != nil && !failed && err != nil && !isNo(err) && ctx.Err() != nil && time.Since(asked) < lookout {
			// the server has hardly had the time to say anything else
			return driver.Grant{}, driver.Waited(ctx)
		}
		failed = err != nil
		if r.Wait && fault.Transient(err) && time.Since(heard) < keeps(r.TTL) {
			if err := b.pause(ctx, err); err != nil {
				return driver.Grant{}, err
			}
			continue
		}
		switch {
		case err != nil:
			return driver.Grant{}, err
		case a.again:
			continue
		}
		heard = time.Now()
		if a.granted {
			return driver.Grant{Token: a.token, TTL: r.TTL, SentAt: c.sent}, nil
		}
		if w == nil {
			w = b.join(m, round)
			a.fresh = false // nobody dropped it
		}
		b.waits(w, a.expiry, a.fresh)
		if err := b.listen(r.Client); err != nil {
			return driver.Grant{}, err
		}
		if err := w.sleep(ctx, b.stop); err != nil {
			if ctx.Err() != nil {
				err = driver.Waited(ctx)
			}
			return driver.Grant{}, err
		}
	}
}

// pause lets a while pass after an error of the line, which an Acquire that waits outlasts as long
// as the server keeps its place.
func (b *Backend) pause(ctx context.Context, why error) error {
	t := time.NewTimer(jitter(lookout / 2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ended(ctx, why)
	case <-b.stop:
		return driver.ErrClosed
	}
}

// run sends an acquire, and makes sure that the replicas have it if they must.
func (b *Backend) run(ctx context.Context, c *call) (any, error) {
	if b.o.WaitReplicas == 0 {
		return b.conv.run(ctx, b.stop, c)
	}
	return b.runOnReplicas(ctx, c)
}

// isNo reports whether the error is one of the answers of acquire.lua: the request stands nowhere.
func isNo(err error) bool {
	return errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrUpgrade) || errors.Is(err, driver.ErrConflict)
}

// final reports whether the error is an answer, so that nothing is under way.
func final(err error) bool { return isNo(err) || fault.Refused(err) }

// verdict is what acquire.lua says to a request that may stand.
type verdict struct {
	again   bool // it does not stand yet; the script had too many dead waiters to remove before it
	granted bool
	token   driver.Token
	expiry  time.Duration // of who waits: until the next of those who hold expires
	fresh   bool          // of who waits: it did not before
}

func parseAcquire(reply any) (verdict, error) {
	l, _ := reply.([]any)
	var n [3]int64
	for i := range min(len(l), len(n)) {
		n[i], _ = l[i].(int64)
	}
	switch {
	case len(l) == 2 && n[0] == 1:
		return verdict{granted: true, token: driver.Token(n[1])}, nil
	case len(l) == 1 && n[0] == 2:
		return verdict{again: true}, nil
	case len(l) == 3 && n[0] == 0:
		return verdict{expiry: time.Duration(n[1]) * time.Microsecond, fresh: n[2] == 1}, nil
	case len(l) == 2 && n[0] == -1:
		switch l[1] {
		case "held":
			return verdict{}, driver.ErrHeld
		case "lost":
			return verdict{}, driver.ErrLost
		case "upgrade":
			return verdict{}, driver.ErrUpgrade
		case "conflict":
			return verdict{}, driver.ErrConflict
		}
	}
	return verdict{}, fmt.Errorf("unexpected reply %v", reply)
}

// giveUp removes a request whose Acquire failed, if it may stand somewhere. b.mu is held.
func (b *Backend) giveUp(m *mine) {
	if !m.stands && !m.uncertain {
		delete(b.mine, m.r.ID)
		return
	}
	b.tasks.Go(func() { b.settle(m) })
}

// settle sends a release until it is answered, the client is closed, or the request has surely
// expired.
func (b *Backend) settle(m *mine) {
	end := time.NewTimer(2*m.r.TTL + 10*time.Second)
	defer end.Stop()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		ctx, cancel := context.WithTimeout(b.ctx, 3*time.Second)
		_, err := b.conv.run(ctx, b.stop, b.releaseCall(m.r, m.uncertain))
		cancel()
		if err == nil {
			b.forget(m.r.ID)
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-b.stop: // Close does it
			t.Stop()
			return
		case <-end.C:
			t.Stop()
			b.forget(m.r.ID)
			return
		}
	}
}

func (b *Backend) forget(id driver.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.mine, id)
}

func (b *Backend) releaseCall(r driver.Request, tombstone bool) *call {
	ttl := int64(0)
	if tombstone {
		ttl = r.TTL.Microseconds()
	}
	return b.call(releaseScript, r.Name, r.ID.String(), ttl)
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	var known mine // as it is now
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	if m := b.mine[r.ID]; m != nil {
		known = *m
		m.releases++
		m.outlives = false
		m.uncertain = m.uncertain || r.Uncertain
	}
	b.mu.Unlock()
	c := b.releaseCall(r, r.Uncertain || known.uncertain)
	reply, err := b.conv.run(ctx, b.stop, c)
	if err != nil {
		if c.copies == 0 {
			b.mu.Lock()
			if m := b.mine[r.ID]; m != nil {
				m.releases--
			}
			b.mu.Unlock()
		}
		return b.explain(ctx, r.Name, err)
	}
	b.forget(r.ID)
	n, _ := reply.(int64)
	if n == 1 || n == 0 && c.copies+known.releases > 1 && time.Now().Before(known.until) {
		return nil // of the second kind: an earlier copy did it, since nothing else can have
	}
	return driver.ErrLost
}

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	reply, err := b.ask(ctx, name, b.call(inspectScript, name))
	if err != nil {
		return driver.Queue{}, err
	}
	return parseQueue(name, reply)
}

// parseQueue reads what inspect.lua returns.
func parseQueue(name string, reply any) (driver.Queue, error) {
	l, ok := reply.([]any)
	if !ok || len(l) != 3 {
		return driver.Queue{}, fmt.Errorf("unexpected reply %v", reply)
	}
	now, _ := l[0].(int64)
	var q driver.Queue
	for _, part := range l[1:] {
		var es []*driver.Entry
		members, _ := part.([]any)
		for _, m := range members {
			member, _ := m.(string)
			e, err := parseEntry(name, member, now)
			if err != nil {
				return driver.Queue{}, err
			}
			es = append(es, e)
		}
		// holders come in no order; those who wait come in theirs, without tokens
		slices.SortStableFunc(es, func(x, y *driver.Entry) int {
			return cmp.Compare(x.Token, y.Token)
		})
		for _, e := range es {
			if e.Join() {
				q.Joins = append(q.Joins, e)
			} else {
				q.Arrivals = append(q.Arrivals, e)
			}
		}
	}
	return q, nil
}

// parseEntry reads a member s, x or w; lua/queue.lua has its parts.
func parseEntry(name, member string, now int64) (*driver.Entry, error) {
	f := strings.SplitN(member, " ", 11)
	if len(f) != 11 || f[0] == "" {
		return nil, fmt.Errorf("unexpected request %q", member)
	}
	e := &driver.Entry{}
	e.Name, e.Label = name, f[10]
	if f[1] == "s" {
		e.Mode = driver.Shared
	}
	var n [5]int64
	for i, at := range []int{2, 4, 5, 6, 9} {
		v, err := strconv.ParseInt(f[at], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("unexpected request %q", member)
		}
		n[i] = v
	}
	e.Limit, e.TTL = int(n[0]), time.Duration(n[3])*time.Microsecond
	if f[0][0] != 'w' { // who waits has a place there
		e.Token = driver.Token(n[1])
	}
	e.Left, e.Age = time.Duration(n[2]-now)*time.Microsecond, time.Duration(now-n[4])*time.Microsecond
	e.Fixed, e.Broken = strings.Contains(f[8], "f"), strings.Contains(f[8], "b")
	err := errors.Join(e.ID.UnmarshalText([]byte(f[0][1:])), e.Owner.UnmarshalText([]byte(f[3])), e.Client.UnmarshalText([]byte(f[7])))
	return e, err
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	f := "0"
	if force {
		f = "1"
	}
	c := b.call(breakScript, name, strconv.FormatUint(uint64(t), 10), f)
	reply, err := b.ask(ctx, name, c)
	if err != nil {
		return err
	}
	if n, _ := reply.(int64); n == 0 && (c.copies == 1 || !force) {
		return driver.ErrNotHeld
	}
	return nil
}

// ask runs a call that needs no clean-up.
func (b *Backend) ask(ctx context.Context, name string, c *call) (any, error) {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return nil, driver.ErrClosed
	}
	reply, err := b.conv.run(ctx, b.stop, c)
	return reply, b.explain(ctx, name, err)
}

// explain says what a user can do about an error of the server or the line. While ctx, which is the
// caller's, lives, it never matches a context's.
func (b *Backend) explain(ctx context.Context, name string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		err = fault.Hide(err)
	}
	switch s := err.Error(); {
	case strings.Contains(s, "WRONGTYPE") || strings.Contains(s, "is not of dlock"):
		return fmt.Errorf("the key %q holds something that this version of dlock did not write; remove it, or use another prefix: %w", b.space.Key(name), err)
	}
	return fault.Explain(err, "docs/redis.md")
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
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	b.tasks.Wait() // each ends with b.ctx
	var left []*call
	b.mu.Lock()
	for _, m := range b.mine {
		if !m.outlives || m.asking > 0 {
			left = append(left, b.releaseCall(m.r, m.uncertain || m.asking > 0))
		}
	}
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range left {
		wg.Go(func() { _, _ = b.conv.run(ctx, nil, c) })
	}
	wg.Wait()
	deaf := make(chan struct{})
	go func() {
		defer close(deaf)
		b.ears.tasks.Wait()
	}()
	select {
	case <-deaf:
	case <-ctx.Done():
		// a connection that is just being opened minds no context: it ends with the library's
		// patience
	}
	if b.owned {
		return b.rdb.Close()
	}
	return nil
}
