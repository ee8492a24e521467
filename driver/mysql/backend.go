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
	// Prefix stands beside every name in the tables. It has at most 255 bytes. Clients with
	// different prefixes share no lock.
	Prefix string

	// Identity names the database, for contexts that carry holds between clients of one process:
	// clients of one database have the same, those of others another. If it is empty nothing is
	// known of that, and package dlock asks the server when it matters.
	Identity string
}

// Backend is a client of one MySQL or MariaDB. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier] and [driver.Lister], whose contracts it keeps.
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
	requests kit.Requests[*ownRequest] // what may stand in the queues
	waiters  kit.Waiters[*ownRequest, nameState]
	polling  bool      // poll runs
	idle     idle      // what waits find nothing by
	ticked   time.Time // when poll last asked although that was enough
	keeping  bool      // keep runs
	kept     time.Time // when it last began
	alive    time.Time // when that which last succeeded did
	swept    time.Time // when the last sweep began
	wakeups  wakeups
	lost     func(driver.ID) // reports a hold that was ended by force; nil: Notify was not called
	watching bool            // watch runs
}

// ownRequest is a request of this client that may stand in a queue. The backend's mu guards it.
type ownRequest struct {
	kit.OwnRequest
	place     int64         // of its row; 0: it has none, as far as it is known
	ahead     driver.ID     // the request before it, if it is another client's; zero: not known
	behind    driver.ID     // that request, if it is of this client
	ended     bool          // by force, and that was reported
	broken    bool          // by an operator, as its release saw
	left      *task         // its Acquire has left it under way, and may have made it
	leftUntil time.Time     // until when a release waits for that
	grant     *driver.Grant // a poll found it granted
	found     *position     // a poll found it let in, which is to be confirmed
}

// New returns a backend over a pool of github.com/go-sql-driver/mysql, or of a wrapper around it.
// The caller owns the pool; Close leaves it open. New does not reach the server.
//
// A connection is used for one statement at a time, and has to come without an open transaction, as
// package sql wants it. Each is asked once how its session is set. Where that is unfit (it does not
// commit by itself, for example) a statement takes three more round trips, and so does one for many
// locks where innodb_lock_wait_timeout is longer than 2 s. A program that holds the only connection
// of a pool while it waits for a lock waits for itself.
//
// The tables have to be there: see [Migrate]. If they are another version's, calls return an error
// that matches [driver.ErrUnsupported].
func New(db *sql.DB, o Options) (*Backend, error) {
	if db == nil {
		return nil, errNoPool
	}
	return newBackend(&pool{db: db}, o, "mysql")
}

func newBackend(p *pool, o Options, scheme string) (*Backend, error) {
	if len(o.Prefix) > 255 {
		return nil, fmt.Errorf("%w options: the prefix has at most 255 bytes", driver.ErrInvalid)
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
	if o.Identity != "" { // the prefix is the queues'
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

// Notify implements [driver.Notifier]. A client that holds something asks twice a second which of
// it was ended by force.
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

// holds records a proof that the request holds, by a statement that was sent at that time. b.mu is
// held.
func (b *Backend) holds(m *ownRequest, sentAt time.Time, left time.Duration) {
	if b.lost != nil && !b.watching {
		b.watching = b.life.Go(b.watch)
	}
	m.Until = sentAt.Add(left)
}

// remove records that the request stands nowhere any more. b.mu is held.
func (b *Backend) remove(m *ownRequest) {
	b.releaseWakeup(m)
	b.requests.Remove(m)
}
