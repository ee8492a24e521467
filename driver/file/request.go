//go:build linux || darwin

package file

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// ownRequest is what the client knows of one of its own requests, granted or waiting.
type ownRequest struct {
	name string // with the prefix
	slot int
	id   driver.ID
	ttl  time.Duration
	cell int
	word *uint64 // the cell

	// It was in the queue. If it is not there any more, it is lost.
	entered atomic.Bool

	// Guarded by Backend.mu.
	decided chan struct{} // closed once it is granted or gone, or that cannot be read (fault)
	fault   error
	calls   int   // calls of Acquire that wait for it
	touched int64 // when the poller last kept it alive
	// failed: its last Acquire failed; absent: before the request was in the queue
	failed, absent bool

	mu sync.Mutex // never locked while Backend.mu is held
	// the word of the slot under which it was last seen in the queue, neither broken nor suspect
	seen  uint64
	armed int64 // when its TTL last began: the time in the cell, or that of the grant
	over  bool  // it was seen to be lost, or is being released
	why   error // the cause of a loss that is reported; nil: none is known
}

// finish makes every later proof of the request fail.
func (own *ownRequest) finish() {
	own.mu.Lock()
	defer own.mu.Unlock()
	own.over = true
}

// own returns the client's record of the request with the ID, or nil.
func (b *Backend) own(id driver.ID) *ownRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests[id]
}

// record returns the client's record of the request, and whether it is new. From then on, a grant
// of the request finds the record.
func (b *Backend) record(r driver.Request) (own *ownRequest, fresh bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if own := b.requests[r.ID]; own != nil {
		own.again()
		return own, false, nil
	}
	cell, word, err := b.session.takeCell()
	if err != nil {
		return nil, false, err
	}
	name := b.prefix + r.Name
	own = &ownRequest{name: name, slot: slot(name), id: r.ID, ttl: r.TTL, cell: cell, word: word, decided: make(chan struct{})}
	b.requests[r.ID] = own
	return own, true, nil
}

// again prepares the request for an Acquire after one that failed. Backend.mu is held.
func (own *ownRequest) again() {
	if own.failed && own.calls == 0 {
		own.decided, own.fault = make(chan struct{}), nil
	}
	own.failed, own.absent = false, false
}

// neverQueued reports whether the request, whose Acquire failed, was never in its queue.
func (b *Backend) neverQueued(own *ownRequest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return own.absent && !own.entered.Load()
}

// forget removes the record of a request that is not in its queue.
func (b *Backend) forget(own *ownRequest) {
	own.finish()
	b.mu.Lock()
	defer b.mu.Unlock()
	own.decide(nil)
	b.unwatch(own)
	if b.requests[own.id] == own {
		delete(b.requests, own.id)
		b.session.returnCell(own.cell)
	}
}
