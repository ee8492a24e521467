package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Options configure [New]. The zero value is useful.
type Options struct {
	// Prefix is stored with every name in the tables. It has at most 255 bytes. Clients with
	// different prefixes share no lock.
	Prefix string

	// Identity names the database, for contexts that carry holds between clients of one process.
	// Clients of one database must have the same Identity, all others different ones. Empty:
	// package dlock queries the server when it matters.
	Identity string
}

// Backend is a client of one MySQL or MariaDB. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier], [driver.Lister] and [driver.Raiser], whose contracts it
// keeps. New makes one; package dlock refuses the zero Backend.
type Backend struct {
	pool     *pool
	prefix   string // as in a statement
	caps     driver.Capabilities
	life     *kit.Life
	takes    *batch // of exclusive requests for free locks
	gives    *batch // of locks that nothing waits for
	arrivals *batch
	looks    *batch     // at what waits
	sooner   kit.Signal // the next poll may be due earlier

	mu       sync.Mutex
	requests kit.Requests[*ownRequest] // those that may stand in the queues
	waiters  kit.Waiters[*ownRequest, nameState]
	polling  bool      // poll runs
	idle     idle      // polls and other questions that found nothing new
	ticked   time.Time // when poll last asked although idle was spent
	keeping  bool      // keep runs
	kept     time.Time // when it last began
	alive    time.Time // when the last one that succeeded began
	swept    time.Time // when the last sweep began
	wakeups  wakeups
	lost     func(driver.ID) // reports a hold that was ended by force; nil: Notify was not called
	watching bool            // watch runs
}

// ownRequest is a request of this client that may stand in a queue. The backend's mu guards it.
type ownRequest struct {
	kit.OwnRequest
	place     int64         // of its row; 0: it has none, as far as is known
	ahead     driver.ID     // the request before it, if it is another client's; zero: not known
	behind    driver.ID     // the request before it, if it is this client's
	ended     bool          // by force, and that was reported
	broken    bool          // by an operator, as its release found
	left      *task         // under way, left by its Acquire; it may have made the request
	leftUntil time.Time     // until when a release waits for left
	grant     *driver.Grant // a poll found it granted
	found     *position     // a poll found it granted, which is to be confirmed
}

// New returns a backend that uses a pool of github.com/go-sql-driver/mysql, or of a wrapper around
// it. The caller owns the pool; Close leaves it open. New does not reach the server. Its errors
// match [driver.ErrInvalid].
//
// A connection is used for one statement at a time. The pool must not hand out connections with an
// open transaction, as package sql requires. The settings of each session are read once. If they
// are unfit (autocommit is off, for example), a statement takes three more round trips, and so does
// one for many locks where innodb_lock_wait_timeout is longer than 2 s. A program that holds the
// only connection of a pool while it waits for a lock blocks itself.
//
// The tables have to exist: see [Migrate]. If they are another version's, calls fail with an error
// that matches [driver.ErrUnsupported].
func New(db *sql.DB, o Options) (*Backend, error) {
	if db == nil {
		return nil, errNoPool
	}
	return newBackend(&pool{db: db}, o, "mysql")
}

func newBackend(p *pool, o Options, scheme string) (*Backend, error) {
	if len(o.Prefix) > 255 {
		return nil, fmt.Errorf("%w options: the prefix is longer than 255 bytes", driver.ErrInvalid)
	}
	b := &Backend{
		pool:     p,
		prefix:   hexOf(o.Prefix),
		life:     kit.NewLife(),
		sooner:   kit.NewSignal(),
		requests: kit.NewRequests(func(r kit.OwnRequest) *ownRequest { return &ownRequest{OwnRequest: r} }),
		wakeups:  wakeups{own: map[driver.ID]bool{}, changed: kit.NewSignal()},
		caps: driver.Capabilities{
			Backend:         scheme,
			Queue:           true,
			Fencing:         true,
			Raises:          true,
			Shared:          true,
			Semaphores:      true,
			Joins:           true,
			Inspect:         true,
			Durable:         true,
			ServerEndsFixed: true,
			FixedOutlives:   true,
			MinTTL:          50 * time.Millisecond,
			MaxTTL:          100 * 365 * 24 * time.Hour,
		},
	}
	if o.Identity != "" { // clients with different prefixes have different queues
		b.caps.Identity = fmt.Sprintf("%q%s", o.Identity, o.Prefix)
	}
	b.takes = newBatch(p, b.takeAll)
	b.gives = newBatch(p, b.giveAll)
	b.arrivals = newBatch(p, b.arriveAll)
	b.looks = newBatch(p, b.lookAll)
	b.waiters = kit.NewWaiters[*ownRequest, nameState](&b.mu, 0)
	return b, nil
}

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier]. A client with holds reads twice a second which of them were
// ended by force.
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = lost
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	if !b.life.End() {
		return nil
	}
	b.life.Wait()
	b.mu.Lock()
	left := b.requests.Left()
	next := make(chan kit.OwnRequest, len(left))
	for _, m := range left {
		next <- m.OwnRequest
	}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	close(next)
	var wg sync.WaitGroup
	for range min(64, len(left)) {
		wg.Go(func() {
			for m := range next {
				if ctx.Err() == nil {
					t := b.newTask(true)
					_, _ = run(ctx, t, nil, func() (bool, error) { return b.release(t, m.Request, m.Uncertain, m.Granted()) })
				}
			}
		})
	}
	wg.Wait()
	if b.pool.owned {
		return b.pool.db.Close()
	}
	return nil
}

// holds records that the request holds, as proved by a statement that was sent at sentAt. b.mu is
// held.
func (b *Backend) holds(m *ownRequest, sentAt time.Time, left time.Duration) {
	if b.lost != nil && !b.watching {
		b.watching = b.life.Go(b.watch)
	}
	m.Until = sentAt.Add(left)
}

// remove records that the request is gone from the server. b.mu is held.
func (b *Backend) remove(m *ownRequest) {
	b.releaseWakeup(m)
	b.requests.Remove(m)
}
