package main

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// ttl is that of all leases: a hold is renewed every third of it, where the contender renews.
const ttl = 15 * time.Second

// contender is one kind of lock on one kind of server: dlock's, or an alternative to it.
type contender struct {
	name string

	// bound marks a contender that is not a lock of the same kind (no lease, no token, no queue),
	// but shows the most that the server can do. It is measured, but never a peer in a ratio.
	bound bool

	outside bool // it runs in another process: its cost to this process says nothing

	alone  bool // it cannot wait: only uncontended locks are measured
	renews bool // it renews its locks by itself
	most   int  // the most lockers at a time, since each is expensive; 0: any number

	open opener

	// beside, unless it is nil, starts a process in which the contender runs, and returns its open.
	beside func(service.T) (*service.Server, opener)
}

// opener opens a new client of the server at an address (for file: of a folder).
type opener func(ctx context.Context, addr string) (client, error)

// client is a client of a contender, as one process would have it.
type client interface {
	// locker returns a locker for one goroutine and one name.
	locker(ctx context.Context, name string) (locker, error)
	close()
}

// locker is used by one goroutine at a time.
type locker interface {
	// lock blocks until it has the lock. Not every contender stops waiting when ctx ends.
	lock(ctx context.Context) error
	unlock() error
	close()
}

// atMost returns n, or the contender's maximum if that is less.
func (c contender) atMost(n int) int {
	if c.most > 0 {
		return min(n, c.most)
	}
	return n
}
