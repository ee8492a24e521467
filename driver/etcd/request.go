package etcd

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// ownRequest is a request of this client that may stand in a queue. The backend's mu guards the
// fields that change.
type ownRequest struct {
	driver.Request
	busy chan struct{} // holds a token while an Acquire or a Release works on it
	wake kit.Signal    // there is news for its Acquire

	standing
	turn
	until           time.Time // the end of trust; zero: Acquire has not returned a grant
	failed          bool      // its last Acquire failed
	broken          bool      // an operator broke it
	releasing       bool      // Release was called for it
	missing         bool      // it is being released, and its key is gone
	unknownReleases int       // releases that were sent, and whose outcome is unknown
	ended           bool      // it was refused, released or lost
}

// standing is what is known of the key of a request.
type standing struct {
	slot      int    // of the key, among this client's keys of the name
	key       string // of its record; "": none yet
	queueKey  string // its key in the peers' queue; "" in dlock's own layout
	lease     *lease // nil: none
	rev       int64  // the revision that put the key; 0: the key is not known to stand
	uncertain bool   // a copy of its acquire may be under way
}

// inQueue returns the key that is the request's place in the queue.
func (s *standing) inQueue() string {
	if s.queueKey != "" {
		return s.queueKey
	}
	return s.key
}

// turn is what is known of a request's turn, as long as its key stands where it was put.
type turn struct {
	checked bool  // admit was called with the requests ahead of it
	waiting bool  // it waits in the queue, and the keeper keeps its lease alive
	granted bool  // the rule grants it
	refusal error // why it will never be granted
}

// moved records that the key was put, or removed: its turn is not known any more.
func (t *turn) moved() { t.checked, t.granted = false, false }

func newOwnRequest(r driver.Request) *ownRequest {
	return &ownRequest{Request: r, busy: make(chan struct{}, 1), wake: kit.NewSignal()}
}

// stopped reports whether no key may be put for the request any more. The backend's mu is held.
func (rq *ownRequest) stopped() bool { return rq.ended || rq.releasing }

// token returns the fencing token of a request that stands.
func (rq *ownRequest) token() driver.Token {
	if rq.Join() {
		return rq.Token
	}
	return driver.Token(rq.rev)
}

// stands records the revision that put the request's key. If the lease was found dead meanwhile,
// the key is gone with it, and nothing is recorded. The backend's mu is held.
func (rq *ownRequest) stands(rev int64) {
	if rq.lease != nil {
		rq.rev = rev
		rq.moved()
	}
}

// stands records the revision that put the request's key.
func (b *Backend) stands(rq *ownRequest, rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rq.stands(rev)
}

// vanished records that a request's key is gone, although this client did not remove it. A request
// that waits goes back to the end of the queue. b.mu is held.
func (b *Backend) vanished(rq *ownRequest) {
	switch {
	case rq.releasing: // the release may have removed it
		rq.missing = true
		return
	case !rq.until.IsZero():
		b.lose(rq, true)
		return
	}
	b.stopWaiting(rq)
	rq.rev = 0
	rq.moved()
	if rq.lease != nil && rq.lease.isGone() {
		rq.uncertain = false // a copy can put nothing under that lease
		rq.detach()
	}
	rq.wake.Set()
}

// detach takes the lease from the request, if it has one. The backend's mu is held.
func (rq *ownRequest) detach() {
	if rq.lease != nil {
		rq.setWaiting(false)
		rq.lease.leave()
		rq.lease = nil
	}
}

// setWaiting records whether the request waits in the queue. The backend's mu is held.
func (rq *ownRequest) setWaiting(waiting bool) {
	if rq.waiting != waiting {
		rq.waiting = waiting
		if rq.lease != nil {
			rq.lease.wait(map[bool]int{true: 1, false: -1}[waiting])
		}
	}
}

// nowhere reports whether the request has no key, and will not get one by a late copy. The
// backend's mu is held.
func (rq *ownRequest) nowhere() bool {
	return rq.key == "" || rq.rev == 0 && !rq.uncertain || rq.lease != nil && rq.lease.isGone() && !rq.broken
}

// failed ends an Acquire that failed, and returns the error for its caller. A request that was
// refused and has no key is forgotten; any other stays until its release. b.mu is held.
func (b *Backend) failed(rq *ownRequest, err error) error {
	b.stopWaiting(rq)
	rq.failed = true
	switch {
	case b.losses[rq.ID] == rq: // its broken key stands until its release
		return driver.Unsettled(err)
	case rq.stopped() || !driver.Refused(err): // a release that is under way removes it
		return err
	case !rq.nowhere():
		return driver.Unsettled(err)
	}
	b.removed(rq, time.Time{})
	b.finish(rq)
	return err
}

// finish removes a request from the client's requests. b.mu is held.
func (b *Backend) finish(rq *ownRequest) {
	rq.ended = true
	b.stopWaiting(rq)
	delete(b.requests, rq.ID)
	rq.wake.Set()
}

// lose ends a hold that was not released, and removes its key, if that may be left. A broken key
// stands until its release: the holder may not know of the loss yet. b.mu is held.
func (b *Backend) lose(rq *ownRequest, notify bool) {
	b.addTombstone(rq.ID, rq.TTL)
	b.losses[rq.ID] = rq
	b.finish(rq)
	b.life.Go(func() {
		kit.Repeat(b.life.Context(), func(ctx context.Context) error {
			_, err := b.remove(ctx, rq)
			return err
		})
	})
	if lost := b.lost; lost != nil && notify {
		go lost(rq.ID)
	}
}

// purgeExpired ends the holds that were not renewed in time. The server does not end them: they
// stand under a shared lease, which lives while other requests under it are renewed. b.mu is held.
func (b *Backend) purgeExpired(now time.Time) {
	for _, rq := range b.losses { // broken keys have expired by now; the others are being removed
		if rq.broken && now.After(rq.until.Add(2*rq.TTL+time.Second)) {
			b.removed(rq, time.Time{})
		}
	}
	if !now.After(b.nextExpiry) {
		return
	}
	b.nextExpiry = now.Add(time.Hour)
	for _, rq := range b.requests {
		switch {
		case rq.until.IsZero():
		case now.After(rq.until):
			b.lose(rq, false)
		case rq.until.Before(b.nextExpiry):
			b.nextExpiry = rq.until
		}
	}
}
