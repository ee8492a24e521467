package main

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// ttl is that of all leases: a hold is renewed every third of it, where the contender renews.
const ttl = 15 * time.Second

// contender is one kind of lock on one kind of server: dlock's, or one that people use instead.
type contender struct {
	name string

	// bound marks what is no lock of the same kind (no lease, no token, no queue), but shows what
	// the server can do at best. It is measured, and no ratio takes it for a peer.
	bound bool

	outside bool // it runs in another process: what it costs this one says nothing

	alone  bool // it cannot wait: only what nobody else wants is measured
	renews bool // it keeps a lock that is held by itself
	most   int  // how many lockers it is given at once, since each costs it so much; 0: any number

	open opener

	// beside, unless it is nil, starts what speaks for the contender, and returns its open.
	beside func(service.T) (*service.Server, opener)
}

// opener opens a client of its own, of the server at an address (for file: a folder).
type opener func(ctx context.Context, addr string) (client, error)

// client is one of a contender's clients: what one process has.
type client interface {
	// locker returns what one goroutine locks one name with.
	locker(ctx context.Context, name string) (locker, error)
	close()
}

// locker is used by one goroutine at a time.
type locker interface {
	// lock waits until it has the lock. Not every contender gives up when ctx ends.
	lock(ctx context.Context) error
	unlock() error
	close()
}

// atMost returns n, or how many lockers it is given at most.
func (c contender) atMost(n int) int {
	if c.most > 0 {
		return min(n, c.most)
	}
	return n
}
