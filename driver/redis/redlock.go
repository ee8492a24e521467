package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// RedlockOptions configure [NewRedlock]. The zero value is useful.
type RedlockOptions struct {
	Prefix string // before every name in the key space

	// NodeTimeout is how long one master has to answer; 0: 250ms. It is never more than a tenth of
	// the TTL.
	NodeTimeout time.Duration

	// RetryDelay is when a waiter asks again, give or take half of it; 0: 50ms. Sooner if the
	// holder expires before.
	RetryDelay time.Duration

	// MinUptime makes masters that have been up for less refuse new holds; 0: none does. See
	// [Redlock] on restarts.
	MinUptime time.Duration
}

// Redlock is a client of several independent Redis or Valkey masters: who is in on a majority of
// them holds the lock. It implements [driver.Backend], [driver.Capable] and [driver.Breaker], whose
// contracts it keeps.
//
// A majority is more than half: 2 of 3, 3 of 5; also 3 of 4, so an even number survives no more
// losses than the odd one below it. As long as a majority answers, the rest may be down, hang or be
// slow; without it, calls fail in time, with an error that says who did not answer, and that is not
// ErrHeld. A hold stays on the masters that granted it: one that was down then does not get it
// later, since a renewal never creates anything.
//
// # What it cannot do
//
// Waiters do not queue, they ask again: nobody is served in order, and rivals may split the votes,
// so that for a moment each is told that the lock is held and none has it. There are no fencing
// tokens, since masters that do not know of each other cannot count together. Exclusive locks only:
// three majorities can overlap in pairs without a master that knows of all three, so no master
// could keep a limit.
//
// # Time
//
// A hold is good for its TTL from the instant before the first master was asked; what the majority
// took to answer is part of that, so it is judged after the quorum. The masters keep it for
// CLOCK_DRIFT longer. This is MIN_VALIDITY = TTL − (T2 − T1) − CLOCK_DRIFT of the description of
// the algorithm (redis.io, "Distributed Locks with Redis"), with the drift that its implementations
// use: a hundredth for clocks that run at different rates, and 2ms for expiry in whole
// milliseconds. The portable layer takes its own margin off that. A master whose wall clock jumps
// expires too early or too late; one may.
//
// # Restarts
//
// A master that comes back without its data has forgotten its votes, and votes again: with a hold
// on A, B and C of five, C forgets, and C, D and E are a majority for somebody else. Keep a master
// that lost its data (or may have: anything but appendfsync always) down for longer than the
// longest TTL, or set MinUptime to that: the masters refuse by themselves, by their clocks, and
// need to be allowed INFO.
type Redlock struct {
	nodes []*node
	need  int  // a majority
	owned bool // Close closes the clients
	space space
	o     RedlockOptions
	caps  driver.Capabilities

	mu     sync.Mutex
	closed bool
	stop   chan struct{} // closed by Close
	tasks  sync.WaitGroup
	// what may stand on the masters, but for what is owed (redlock_debts.go)
	ballots map[driver.ID]*ballot
}

// node is one of the masters.
type node struct {
	rdb   redis.UniversalClient
	where string

	debts  map[driver.ID]*debt // guarded by Redlock.mu, as is all that follows
	paying bool
	kick   chan struct{} // there is a new debt
}

// NewRedlock returns a backend over clients that the caller owns, one for each master, and that
// Close leaves open. It wants at least three, all different; it does not reach them yet. Their
// retry options do not matter. They should have ContextTimeoutEnabled: without it, what waits for a
// master that hangs stays for as long as the client's own timeouts.
func NewRedlock(clients []redis.UniversalClient, o RedlockOptions) (*Redlock, error) {
	if o.NodeTimeout == 0 {
		o.NodeTimeout = 250 * time.Millisecond
	}
	if o.RetryDelay == 0 {
		o.RetryDelay = 50 * time.Millisecond
	}
	if o.NodeTimeout < time.Millisecond || o.RetryDelay < time.Millisecond || o.MinUptime < 0 {
		return nil, fmt.Errorf("%w options: the node timeout and the retry delay are at least 1ms, and the least uptime is not negative",
			driver.ErrInvalid)
	}
	if len(clients) < 3 {
		return nil, fmt.Errorf("%w options: Redlock wants at least 3 masters, not %d", driver.ErrInvalid, len(clients))
	}
	b := &Redlock{
		need: len(clients)/2 + 1, space: newSpace(o.Prefix), o: o,
		stop: make(chan struct{}), ballots: map[driver.ID]*ballot{},
	}
	var all, ids []string
	for _, c := range clients {
		if err := refuseRing(c); err != nil {
			return nil, err
		}
		where, id := redlockAddress(c)
		if slices.Contains(all, where) {
			return nil, fmt.Errorf("%w options: the master %s is named twice", driver.ErrInvalid, where)
		}
		all, ids = append(all, where), append(ids, id)
		b.nodes = append(b.nodes, &node{rdb: c, where: where, debts: map[driver.ID]*debt{}, kick: make(chan struct{}, 1)})
	}
	slices.Sort(ids)
	b.caps = driver.Capabilities{
		Backend: "redlock", Identity: strings.Join(ids, " ") + " " + o.Prefix,
		Inspect: true, ServerEndsFixed: true, FixedOutlives: true, MinTTL: 500 * time.Millisecond, MaxTTL: maxTTL,
	}
	return b, nil
}

// redlockAddress returns where the master is, and which of its key spaces the client uses.
func redlockAddress(rdb redis.UniversalClient) (where, id string) {
	// FailoverClient is all that one of Sentinel says of itself.
	if c, ok := rdb.(*redis.Client); ok && c.Options().Addr != "FailoverClient" {
		return c.Options().Addr, fmt.Sprintf("%s/%d", c.Options().Addr, c.Options().DB)
	}
	where = fmt.Sprintf("%p", rdb)
	return where, where
}

// Capabilities implements [driver.Capable].
func (b *Redlock) Capabilities() driver.Capabilities { return b.caps }

// timeout is how long a master has to answer, and Redlock to make up its mind.
func (b *Redlock) timeout(ttl time.Duration) time.Duration { return min(b.o.NodeTimeout, ttl/10) }

// holder returns the key under which a master has the holder of the name.
func (b *Redlock) holder(name string) string { return b.space.key(name) + ":redlock" }

// call is a script with what the request is known by on every master.
func (b *Redlock) call(s *script, name, id string, args ...any) *call {
	key := b.holder(name)
	return newCall(s, []string{key, key + ":" + id}, append([]any{id}, args...)...)
}

func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// answer is what came of the calls to one master. Each call has its own error.
type answer struct {
	node  int
	calls []*call
}

// ask sends the calls to every master at once. landed is called, under mu, when those to one are
// done, however late that is.
func (b *Redlock) ask(timeout time.Duration, calls func() []*call, landed func(answer)) (<-chan answer, error) {
	answers, asks := make(chan answer, len(b.nodes)), make([]func(), len(b.nodes))
	for i, n := range b.nodes {
		a := answer{i, calls()}
		asks[i] = func() {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			exec(ctx, n.rdb, a.calls)
			b.mu.Lock()
			landed(a)
			b.mu.Unlock()
			answers <- a
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, driver.ErrClosed
	}
	for _, ask := range asks {
		b.tasks.Go(ask)
	}
	return answers, nil
}

// gather takes n answers as they come, until take has enough of them, the time is over, or the
// caller or the client goes: the error says which of the two.
func gather[A any](
	ctx context.Context, b *Redlock, n int, timeout time.Duration, answers <-chan A, take func(A) (enough bool),
) error {
	t := time.NewTimer(timeout)
	defer t.Stop()
	for range n {
		select {
		case a := <-answers:
			if take(a) {
				return nil
			}
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-b.stop:
			return driver.ErrClosed
		}
	}
	return nil
}

// Close implements [driver.Backend]. Masters that hang cost it up to four seconds; what they hold
// expires.
func (b *Redlock) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	close(b.stop)
	b.mu.Unlock()
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		b.tasks.Wait()
	}()
	select {
	case <-settled:
	case <-time.After(time.Second):
		// a client of the caller's that does not mind the end of a context
	}
	b.payAll()
	var err error
	for _, n := range b.nodes {
		if b.owned {
			err = errors.Join(err, n.rdb.Close())
		}
	}
	return err
}
