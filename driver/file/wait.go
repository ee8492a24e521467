//go:build linux || darwin

package file

import (
	"context"
	"math"

	"github.com/dlock-go/dlock/driver"
)

// await waits until a request that stands in the queue is granted, and returns the grant.
func (b *Backend) await(ctx context.Context, own *ownRequest) (driver.Grant, error) {
	if g, err := b.granted(own); err != nil || g.Token != 0 {
		return g, err
	}
	decided := b.addWaiter(own)
	defer b.removeWaiter(own)
	select {
	case <-decided:
		if own.fault != nil {
			return driver.Grant{}, own.fault
		}
		return b.granted(own)
	case <-ctx.Done():
		return driver.Grant{}, driver.Waited(ctx)
	case <-b.closing:
		return driver.Grant{}, driver.ErrClosed
	}
}

// waitingSlot is a slot in which requests of this client wait.
type waitingSlot struct {
	slot int

	// Guarded by Backend.mu.
	requests map[driver.ID]*ownRequest
	touch    int64 // when the next of them has to be kept alive

	// These belong to the poller.
	state    *state      // as last read
	faults   int         // how often in a row it could not be read
	due      int64       // when to check it again at the latest
	index    int         // in the heap
	guard    bool        // this client tests every tick whether the blocking ones are alive
	blocking []sessionID // the other clients that are in the way
}

// addWaiter hands a waiting request to the poller. The result is closed when the request is
// decided.
func (b *Backend) addWaiter(own *ownRequest) <-chan struct{} {
	own.mu.Lock()
	armed := own.armed
	own.mu.Unlock()
	b.mu.Lock()
	own.calls++
	w := b.waiting[own.slot]
	if w == nil {
		w = &waitingSlot{slot: own.slot, requests: map[driver.ID]*ownRequest{}, touch: math.MaxInt64}
		b.waiting[own.slot] = w
	}
	w.requests[own.id] = own
	own.touched = max(own.touched, armed)
	w.touch = min(w.touch, own.touched+int64(own.ttl)/3)
	decided := own.decided
	b.poll()
	b.mu.Unlock()
	b.notifyPoller(own.slot)
	return decided
}

// poll starts the poller if it does not run. After Close it does not: the poller would not be woken
// to end, and Close waits for it. b.mu is held.
func (b *Backend) poll() {
	if !b.polling && !b.closed {
		b.polling = true
		b.calls.Go(newPoller(b).run)
	}
}

// notifyPoller makes the poller check a slot now.
func (b *Backend) notifyPoller(slot int) {
	b.mu.Lock()
	first := len(b.notified) == 0
	polled := b.polling && !b.closed && (b.waiting[slot] != nil || b.held[slot] != nil)
	if polled {
		b.notified = append(b.notified, slot)
	}
	b.mu.Unlock()
	if polled && first {
		b.session.wakeSelf()
	}
}

// removeWaiter undoes addWaiter.
func (b *Backend) removeWaiter(own *ownRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if own.calls--; own.calls > 0 {
		return
	}
	if w := b.waiting[own.slot]; w != nil {
		delete(w.requests, own.id)
		if len(w.requests) == 0 {
			delete(b.waiting, own.slot)
		}
	}
}

// decide wakes the calls that wait for the request: it is granted or gone, or its state cannot be
// read (err).
func (b *Backend) decide(id driver.ID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if own := b.requests[id]; own != nil {
		own.decide(err)
	}
}

// decide is what Backend.decide does to one request. Backend.mu is held.
func (own *ownRequest) decide(err error) {
	select {
	case <-own.decided:
	default:
		own.fault = err
		close(own.decided)
	}
}

// failAll wakes the waiters of a slot whose state cannot be read.
func (b *Backend) failAll(w *waitingSlot, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, own := range w.requests {
		own.decide(err)
	}
}
