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

	// GrantWindow is how long a waiter that was not heard of for so long has to confirm a grant by
	// another client. It is at least 10 ms; 0 means 1 s. It is longer while the server is slow:
	// nine times as long as its answers take to whoever grants, and 5 s at most.
	GrantWindow time.Duration

	// Identity names the database, for contexts that carry holds between clients of one process:
	// clients of one database have the same, those of others another. If it is empty nothing is
	// known of that, and package dlock asks the server when it matters.
	Identity string
}

// Backend is a client of one MySQL or MariaDB. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier] and [driver.Lister], whose contracts it keeps.
type Backend struct {
	pool   *pool
	o      Options
	prefix bin
	caps   driver.Capabilities
	life   *kit.Life
	calls  serializer
	sooner kit.Signal // the next poll may be due earlier

	mu        sync.Mutex
	requests  kit.Requests[*request] // what may stand in the queues
	waiters   kit.Waiters[*request, queue]
	exclusive map[string]int // by name: how many of the requests hold it alone
	polling   bool           // poll runs
	kept      time.Time      // when poll last kept alive what waits; poll's own
	bells     bells
	lost      func(driver.ID) // reports a hold that was ended by force; nil: Notify was not called
	watching  bool            // watch runs
}

// New returns a backend over a pool of github.com/go-sql-driver/mysql. The caller owns the pool;
// Close leaves it open. A wrapper around that driver has to show all result sets of an answer
// (driver.RowsNextResultSet); else each call returns an error that matches [driver.ErrInvalid].
// New does not reach the server. Of the pool's DSN only the database matters: a connection is used
// for one statement at a time, and what an earlier user left open in it is rolled back. Whoever
// holds the only connection of a pool while it waits for a lock waits for itself. The schema has
// to be there: see [Migrate]. If it is another version's, calls return an error that matches
// [driver.ErrUnsupported].
func New(db *sql.DB, o Options) (*Backend, error) {
	if db == nil {
		return nil, errNoPool
	}
	return newBackend(&pool{db: db}, o, "mysql")
}

func newBackend(p *pool, o Options, scheme string) (*Backend, error) {
	if o.GrantWindow == 0 {
		o.GrantWindow = time.Second
	}
	if o.GrantWindow < 10*time.Millisecond || len(o.Prefix) > 255 {
		return nil, fmt.Errorf("%w options: the grant window is at least 10ms, and the prefix has at most 255 bytes", driver.ErrInvalid)
	}
	b := &Backend{
		pool:      p,
		o:         o,
		prefix:    bin(o.Prefix),
		life:      kit.NewLife(),
		calls:     serializer{names: map[string]*backlog{}},
		sooner:    kit.NewSignal(),
		requests:  kit.NewRequests(func(r kit.Request) *request { return &request{Request: r} }),
		exclusive: map[string]int{},
		bells:     bells{own: map[driver.ID]bool{}, ring: kit.NewSignal()},
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
	b.waiters = kit.NewWaiters[*request, queue](&b.mu, 0)
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
	calls := make(chan *call, len(left))
	names := make(map[*call]string, len(left))
	for _, m := range left {
		c := b.newRelease(m.Request.Request, m.Uncertain)
		names[c] = m.Name
		calls <- c
	}
	b.mu.Unlock()
	close(calls)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range min(8, len(left)) {
		wg.Go(func() {
			for c := range calls {
				if ctx.Err() == nil {
					_ = b.send(ctx, nil, names[c], true, c)
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
