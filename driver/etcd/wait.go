package etcd

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// throughOutage calls f for a request. If the request may wait, and no answer comes, or the servers
// refuse all requests until an operator acts, it calls f again until it is answered, ctx ends, or a
// TTL has passed: a shorter outage ends no wait, whether the request stands in the queue or is on
// the way there. For all other requests it calls f once; package dlock bounds those.
func (b *Backend) throughOutage(ctx context.Context, r driver.Request, f func() error) error {
	end := time.Now().Add(r.TTL)
	for {
		err := f()
		var silence *unanswered
		full := read(err).handling == later
		if !r.Wait || r.Join() || !errors.As(err, &silence) && !full || ctx.Err() != nil || time.Until(end) < firstTry {
			return err
		}
		if full && kit.Pause(ctx, b.life.Closed(), firstTry) != nil && ctx.Err() != nil {
			return &ended{ctx.Err(), err}
		}
	}
}

// enqueue puts a request at the end of the queue, and blocks until it is granted.
func (b *Backend) enqueue(ctx context.Context, rq *ownRequest) error {
	for {
		var granted bool
		err := b.throughOutage(ctx, rq.Request, func() (err error) {
			granted, err = b.put(ctx, rq)
			return err
		})
		if granted || err != nil {
			return err
		}
		b.mu.Lock()
		if rq.stopped() {
			b.mu.Unlock()
			return driver.ErrLost
		}
		if rq.rev != 0 {
			b.startWaiting(rq)
		}
		b.mu.Unlock()
		if err := b.awaitNews(ctx, rq); err != nil {
			return err
		}
		b.mu.Lock()
		again, stopped, refusal := rq.rev == 0, rq.stopped(), rq.refusal
		b.mu.Unlock()
		switch {
		case stopped:
			return driver.ErrLost
		case refusal != nil:
			return refusal
		case !again:
			return nil
		}
	}
}

// awaitNews blocks until a waiting request is granted, refused, or has lost its key.
func (b *Backend) awaitNews(ctx context.Context, rq *ownRequest) error {
	for {
		b.mu.Lock()
		done := rq.granted || rq.stopped() || rq.refusal != nil || rq.rev == 0
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-rq.wake:
		case <-ctx.Done():
			return driver.WaitedFor(ctx, b.heldBy(rq))
		case <-b.life.Closed():
			return driver.ErrClosed
		}
	}
}

// heldBy returns the error for the end of a wait, with the holder that the watch has reported.
func (b *Backend) heldBy(rq *ownRequest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.names[rq.Name]; n != nil && n.queue != nil {
		return n.queue.held(rq.inQueue())
	}
	return driver.ErrHeld
}

// startWaiting makes the keeper keep the lease of a request alive, and watches its name. b.mu is
// held.
func (b *Backend) startWaiting(rq *ownRequest) {
	n := b.nameOf(rq.Name)
	n.waiting[rq.inQueue()] = rq
	rq.setWaiting(true)
	if n.watch == nil {
		n.watch = b.watches.add(n.prefix, ofName{b, n})
	}
	n.contended = true
	if v := b.verdict.Load(); v != nil {
		rq.refusal = v.err
	}
	if !rq.checked {
		n.unchecked = append(n.unchecked, rq)
	}
	if n.queue != nil {
		b.checkStands(n, rq)
		n.wakeGranted()
	}
}

// stopWaiting undoes startWaiting. b.mu is held.
func (b *Backend) stopWaiting(rq *ownRequest) {
	n := b.names[rq.Name]
	if n == nil || n.waiting[rq.inQueue()] != rq {
		return
	}
	delete(n.waiting, rq.inQueue())
	rq.setWaiting(false)
	n.idleSince = time.Now()
}
