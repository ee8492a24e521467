package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Options configure [New] and [NewDB]. The zero value is useful.
type Options struct {
	// Prefix is stored with every name in the tables. It has at most 255 bytes. Clients with
	// different prefixes share no lock.
	Prefix string

	// Identity names the database, for contexts that carry holds between clients of one process.
	// Clients of one database must have the same Identity, all others different ones. Empty:
	// package dlock queries the server when it matters.
	Identity string
}

// Backend is a client of one PostgreSQL database. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier], [driver.Lister] and [driver.Raiser], whose contracts it
// keeps. New and NewDB make one; package dlock refuses the zero Backend.
type Backend struct {
	pool   *pool
	prefix []byte
	caps   driver.Capabilities
	life   *kit.Life
	takes  kit.Line[*call] // of exclusive requests for free locks
	gives  kit.Line[*call] // of locks that have nothing beside them
	looks  kit.Line[*call] // at what waits
	visits visits
	sooner kit.Signal // the next poll may be due earlier

	mu         sync.Mutex
	requests   kit.Requests[*ownRequest] // those that may stand in the queues
	waiters    kit.Waiters[*ownRequest, nameState]
	client     driver.ID // of the requests; zero: not known yet
	polling    bool      // poll runs
	keeping    bool      // keep runs
	kept       time.Time // when it last began
	alive      time.Time // when the last one that succeeded began
	swept      time.Time // when the last sweep began
	listening  bool      // listen runs
	subscribed bool      // its connection listens
	lost       func(driver.ID)
	watching   bool // watch runs
}

// ownRequest is a request of this client that may stand in a queue. The backend's mu guards it.
type ownRequest struct {
	kit.OwnRequest
	place     int64         // of its row; 0: it has none, as far as is known
	ended     bool          // by force, and that was reported
	broken    bool          // by an operator, as its release found
	left      *task         // under way, left by its Acquire; it may have made the request
	leftUntil time.Time     // until when a release waits for left
	grant     *driver.Grant // a poll found it granted
	found     *position     // a poll found it granted, which is to be confirmed
}

// New returns a backend that uses a pool of pgx. The caller owns the pool; Close leaves it open.
// New does not reach the server. Its errors match [driver.ErrInvalid].
//
// A call takes a connection for one message to the server and its answer. While something waits,
// the backend keeps one connection more, on which it listens, if the pool has at least three. A
// program that holds the only connection of a pool while it waits for a lock blocks itself.
//
// The tables have to exist in the search_path of the connections: see [Migrate]. If they are
// another version's, calls fail with an error that matches [driver.ErrUnsupported].
func New(pgx *pgxpool.Pool, o Options) (*Backend, error) {
	if pgx == nil {
		return nil, errNoPool
	}
	return newBackend(&pool{source: pgxSource{pgx}}, o, driver.ID{})
}

// NewDB is [New] over a pool of package sql whose driver is github.com/jackc/pgx/v5/stdlib. With
// another driver the calls fail with an error that matches [driver.ErrInvalid].
func NewDB(db *sql.DB, o Options) (*Backend, error) {
	if db == nil {
		return nil, errNoPool
	}
	return newBackend(&pool{source: sqlSource{db}}, o, driver.ID{})
}

// newBackend returns a backend over a pool. client may be zero: then it is learned from the
// requests.
func newBackend(p *pool, o Options, client driver.ID) (*Backend, error) {
	if len(o.Prefix) > 255 {
		return nil, fmt.Errorf("%w options: the prefix is longer than 255 bytes", driver.ErrInvalid)
	}
	b := &Backend{
		pool:     p,
		prefix:   []byte(o.Prefix),
		client:   client,
		life:     kit.NewLife(),
		sooner:   kit.NewSignal(),
		requests: kit.NewRequests(func(r kit.OwnRequest) *ownRequest { return &ownRequest{OwnRequest: r} }),
		caps: driver.Capabilities{
			Backend:         "postgres",
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
	b.takes, b.gives, b.looks = newLine(b.takeAll), newLine(b.giveAll), newLine(b.lookAll)
	b.visits = visits{b: b, by: map[string]*visitor{}}
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
	for range min(maxBatch, len(left)) {
		wg.Go(func() {
			for m := range next {
				if ctx.Err() == nil {
					t := b.newTask()
					_, _ = run(ctx, t, nil, func() (bool, error) { return b.release(t, m.Request, m.Uncertain, m.Granted()) })
				}
			}
		})
	}
	wg.Wait()
	if b.pool.owned { // it waits for connections that say goodbye to a server that does not answer
		kit.Within(2*time.Second, b.pool.close)
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

// span is a number of microseconds as a duration, clipped to what a duration can be.
func span(us int64) time.Duration {
	return time.Duration(min(max(us, -math.MaxInt64/1000), math.MaxInt64/1000)) * time.Microsecond
}
