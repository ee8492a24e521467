package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	rq, loss := b.requests[r.ID], b.losses[r.ID]
	if r.Uncertain {
		b.addTombstone(r.ID, r.TTL)
	}
	if loss != nil {
		loss.releasing = true
		b.mu.Unlock()
		if _, err := b.remove(ctx, loss); err != nil {
			return err
		}
		return driver.ErrLost
	}
	if rq == nil {
		b.mu.Unlock()
		return driver.ErrLost
	}
	// after a failed Acquire rq.uncertain is exact, and r.Uncertain adds nothing
	rq.uncertain, rq.releasing = rq.uncertain || r.Uncertain && !rq.failed, true
	if !rq.until.IsZero() && time.Now().After(rq.until) {
		b.lose(rq, false)
		b.mu.Unlock()
		return driver.ErrLost
	}
	acquiring := rq.until.IsZero()
	b.mu.Unlock()
	if acquiring { // its Acquire ends first, so that no key is put after the removal
		rq.wake.Set()
		select {
		case rq.busy <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.life.Closed():
			return driver.ErrClosed
		}
		defer func() { <-rq.busy }()
		b.mu.Lock()
		ended := rq.ended
		b.mu.Unlock()
		if ended {
			return driver.ErrLost
		}
	}
	removed, err := b.remove(ctx, rq)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// in the second case only an earlier copy can have removed it
	if removed || rq.unknownReleases > 0 && !rq.broken && time.Now().Before(rq.until) {
		return nil
	}
	return driver.ErrLost
}

// remove removes a request's key, and reports whether it was there as it had been put.
//
// If a copy of the acquire may be under way it leaves a tombstone, which expires by itself. A
// server without space accepts no tombstone: then the key is deleted, and a key that a copy puts
// when there is space again is an orphan. A late copy of remove's transaction does not change a
// later owner of the key.
func (b *Backend) remove(ctx context.Context, rq *ownRequest) (removed bool, err error) {
	b.mu.Lock()
	key, queueKey, rev, l := rq.key, rq.queueKey, rq.rev, rq.lease
	// a fixed lease is revoked, and then no copy can put a key under it
	uncertain := rq.uncertain && !(l != nil && l.fixed)
	if rq.nowhere() {
		b.removed(rq, time.Time{})
		b.mu.Unlock()
		return false, nil
	}
	// a release that others wait for is not delayed by arrivals
	urgent := !rq.until.IsZero() && b.nameOf(rq.Name).contended
	b.mu.Unlock()
	var until time.Time
	var id int64
	if uncertain {
		switch id, until, err = b.leases.forTombstone(ctx, rq.TTL); {
		case isFull(err):
			uncertain = false
		case err != nil:
			return false, err
		}
	}
	for mod := rev; ; {
		req := &pb.TxnRequest{Compare: []*pb.Compare{is(key, mod)}, Success: removal(rq.Request, key, queueKey, id), Failure: []*pb.RequestOp{keyOp(key)}}
		var res *pb.TxnResponse
		res, _, err = b.txn(ctx, rq.Name, urgent, req, func(err error) {
			// the transaction that takes the last of the space is executed
			if outcomeOf(err) == kit.Unknown || isFull(err) {
				b.mu.Lock()
				rq.unknownReleases++
				b.mu.Unlock()
			}
		})
		if uncertain && isFull(err) {
			id, uncertain, until = 0, false, time.Time{}
			continue
		}
		if isGone(err) { // the tombstone's lease
			b.leases.dropTombstones(rq.TTL)
		}
		if err != nil {
			return false, err
		}
		if res.Succeeded {
			removed = mod == rev && rev != 0 && stood(res)
			break
		}
		next := int64(0) // it is not there: a tombstone can be put
		if kvs := rangeIn(res).Kvs; len(kvs) > 0 {
			r := decode(rq.Name, kvs[0])
			if r.ID != rq.ID || r.tombstone { // another request's key, or a tombstone
				until = time.Now().Add(time.Minute)
				break
			}
			next = r.mod // broken by an operator, or put by a copy that came late
			if r.Broken && !b.mayRemoveBroken(rq) {
				return false, nil
			}
		} else if !uncertain && queueKey == "" {
			break
		}
		mod = next
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed(rq, until)
	return removed, nil
}

// mayRemoveBroken reports whether a broken key may be removed: its holder has released it, or does
// not trust it any more. Otherwise the key stands until its Release, or expires.
func (b *Backend) mayRemoveBroken(rq *ownRequest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	rq.broken = true
	if rq.releasing || !time.Now().Before(rq.until) {
		return true
	}
	b.leaveLease(rq)
	return false
}

// removed records that a request's key was removed; a tombstone stands there until the time, if it
// is not zero. A request that was released ends. b.mu is held.
func (b *Backend) removed(rq *ownRequest, until time.Time) {
	if rq.key != "" {
		b.stopWaiting(rq)
		b.freeKey(rq.Name, rq.slot, until)
		rq.key, rq.queueKey, rq.rev = "", "", 0
	}
	b.leaveLease(rq)
	delete(b.losses, rq.ID)
	if rq.releasing && !rq.ended {
		b.finish(rq)
	}
}

// leaveLease takes the lease from a request whose key does not stand under it any more, and revokes
// it if it was of that request alone. b.mu is held.
func (b *Backend) leaveLease(rq *ownRequest) {
	l := rq.lease
	rq.detach()
	if l != nil && l.fixed {
		b.leases.revokeFixed(l)
	}
}
