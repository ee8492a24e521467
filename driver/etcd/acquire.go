package etcd

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	if err := kit.CheckTTL(r.TTL, b.caps); err != nil {
		return driver.Grant{}, err
	}
	if err := b.admits(r); err != nil {
		return driver.Grant{}, err
	}
	if err := b.throughOutage(ctx, r, func() error { return b.ready(ctx) }); err != nil {
		return driver.Grant{}, err
	}
	r.Token = b.tokens.Sub(r.Token)
	rq, err := b.register(r)
	if err != nil {
		return driver.Grant{}, err
	}
	select {
	case rq.busy <- struct{}{}:
		// also if ctx has ended: the request was registered, and is removed below
	default:
		select {
		case rq.busy <- struct{}{}:
		case <-ctx.Done():
			return driver.Grant{}, ctx.Err()
		}
	}
	defer func() { <-rq.busy }()
	g, err := b.acquire(ctx, rq)
	if err == nil {
		g.Token = b.tokens.Add(g.Token)
		return g, nil
	}
	if errors.Is(err, driver.ErrConflict) { // it may have stood for a moment
		_, _ = b.remove(ctx, rq)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Over() {
		return driver.Grant{}, driver.ErrClosed // Close removes it
	}
	return driver.Grant{}, b.failed(rq, err)
}

// register returns the request of this client with that ID, which it adds if there is none.
func (b *Backend) register(r driver.Request) (*ownRequest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Over() {
		return nil, driver.ErrClosed
	}
	if b.losses[r.ID] != nil {
		return nil, driver.Unsettled(driver.ErrLost)
	}
	if b.tombstones.Has(r.ID, time.Now()) {
		return nil, driver.ErrLost
	}
	rq := b.requests[r.ID]
	if rq == nil {
		rq = newOwnRequest(r)
		b.requests[r.ID] = rq
	}
	rq.failed = false
	return rq, nil
}

func (b *Backend) acquire(ctx context.Context, rq *ownRequest) (driver.Grant, error) {
	b.mu.Lock()
	ended, held := rq.ended, !rq.until.IsZero()
	b.mu.Unlock()
	switch {
	case ended:
		return driver.Grant{}, driver.ErrLost
	case held:
		p := b.Renew(ctx, []driver.Request{rq.Request})[0]
		return driver.Grant{Token: rq.token(), TTL: p.TTL, SentAt: p.SentAt}, p.Err
	}
	for {
		var err error
		switch {
		case rq.Join():
			err = b.join(ctx, rq)
		case rq.Wait:
			err = b.enqueue(ctx, rq)
		default:
			err = b.try(ctx, rq)
		}
		if err != nil {
			return driver.Grant{}, err
		}
		g, err := b.confirm(ctx, rq)
		if !errors.Is(err, errAgain) {
			return g, err
		}
	}
}

// errAgain: the request's lease ended before it could be granted.
var errAgain = errors.New("again")

// confirm makes a granted request a hold. That requires a lease of which at least half of the time
// is left.
func (b *Backend) confirm(ctx context.Context, rq *ownRequest) (driver.Grant, error) {
	for {
		b.mu.Lock()
		l := rq.lease
		if rq.stopped() {
			b.mu.Unlock()
			return driver.Grant{}, driver.ErrLost
		}
		if rq.rev == 0 || l == nil {
			b.mu.Unlock()
			return driver.Grant{}, errAgain
		}
		if since, fresh := l.trust(); fresh && (!l.fixed || !rq.waiting) {
			b.stopWaiting(rq)
			rq.until = since.Add(l.ttl)
			if b.nextExpiry.After(rq.until) {
				b.nextExpiry = rq.until
			}
			g := driver.Grant{Token: rq.token(), TTL: l.ttl, SentAt: since}
			b.mu.Unlock()
			return g, nil
		}
		b.mu.Unlock()
		if err := b.throughOutage(ctx, rq.Request, func() error { return b.leases.refresh(ctx, l) }); errors.Is(err, driver.ErrLost) {
			continue
		} else if err != nil {
			return driver.Grant{}, err
		}
		b.mu.Lock()
		b.stopWaiting(rq) // a fixed lease has all of its time now, and is kept alive no longer
		b.mu.Unlock()
	}
}

// prepare gives a request a lease and a key, if it lacks them.
func (b *Backend) prepare(ctx context.Context, rq *ownRequest) (*lease, arrival, error) {
	for {
		b.mu.Lock()
		if rq.stopped() {
			b.mu.Unlock()
			return nil, arrival{}, driver.ErrLost
		}
		if l := rq.lease; l != nil {
			defer b.mu.Unlock()
			if rq.key == "" {
				b.assignKey(rq)
			}
			if b.plain != nil {
				rq.queueKey = b.plain.queueKey(rq.Name, l.id, rq.slot)
			}
			return l, arrivalOf(rq, l), nil
		}
		b.mu.Unlock()
		if err := b.assignLease(ctx, rq); err != nil {
			return nil, arrival{}, err
		}
	}
}

// assignLease gives a request a lease of which at least half of the time is left.
func (b *Backend) assignLease(ctx context.Context, rq *ownRequest) error {
	l, err := b.leases.take(ctx, rq.TTL, rq.Fixed)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awaitNotices()
	rq.lease = l
	return nil
}

// leaseEnded records that the server does not have a lease any more, and so none of its keys.
func (b *Backend) leaseEnded(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, rq := range b.requests {
		if rq.lease == l {
			b.vanished(rq)
		}
	}
}

// put puts the key of a request that may wait, and reports whether it is granted at once. The same
// transaction reads the queue, unless the watch will report it: if the name's queue is known to be
// long, or another request of this client is arriving under the name and reads it. So of thousands
// of requests that arrive at once few read the queue, which then has thousands of keys.
func (b *Backend) put(ctx context.Context, rq *ownRequest) (granted bool, err error) {
	for {
		l, a, err := b.prepare(ctx, rq)
		if err != nil {
			return false, err
		}
		b.mu.Lock()
		n := b.nameOf(rq.Name)
		alone := !n.contended && n.arriving == 0
		unread := n.queue != nil && len(n.queue.arrivals) > shortQueue || n.arriving > 0
		n.arriving++
		b.mu.Unlock()
		if alone { // the name is most likely free, and the shortest transaction is enough
			rev, err := b.putAlone(ctx, rq, a)
			b.arrived(n)
			if isGone(err) {
				b.leases.end(l)
			} else if rev != 0 || err != nil {
				return rev != 0, err
			}
			continue
		}
		read := rangeOp(n.prefix)
		req := &pb.TxnRequest{Compare: a.absent, Success: append(a.puts, read), Failure: append(a.own, read)}
		if unread {
			// also of a transaction that was sent again: a slow server has many of these
			req.Success, req.Failure = a.puts, append(a.own, a.inQueue)
		}
		res, rev, err := b.write(ctx, rq, req)
		b.arrived(n)
		if isGone(err) {
			b.leases.end(l)
			continue
		}
		if err != nil {
			return false, err
		}
		if unread && res.Succeeded {
			b.stands(rq, rev)
			return false, nil
		}
		if res.Succeeded && rangeIn(res).More { // there are so many keys that the watch reads them
			b.stands(rq, rev)
			return false, nil
		}
		kvs, _, err := b.whole(ctx, n.prefix, rangeIn(res), rev)
		if err != nil {
			return false, err
		}
		if res.Succeeded && len(kvs) == 1 { // its own
			b.sawOthers(rq, false)
			b.stands(rq, rev)
			return true, nil
		}
		q := b.newQueue(rq.Name, kvs)
		if !res.Succeeded {
			if rev, err = b.resume(rq, res, q); err != nil {
				return false, err
			} else if rev == 0 {
				continue
			}
		}
		b.stands(rq, rev)
		if unread { // an earlier copy of it stands
			return false, nil
		}
		if _, err := q.admit(rq.Request, rev); err != nil {
			return false, err
		}
		b.mu.Lock()
		rq.checked = true
		b.mu.Unlock()
		return q.place(rev) < q.rule.Granted(), nil
	}
}

// putAlone puts a request's key if there is no other key under the name. Otherwise the revision is
// 0.
func (b *Backend) putAlone(ctx context.Context, rq *ownRequest, a arrival) (rev int64, err error) {
	res, rev, err := b.write(ctx, rq, &pb.TxnRequest{
		Compare: append(a.absent, unchanged(b.queueOf(rq.Name), 0)), Success: a.puts,
	})
	if err != nil {
		return 0, err
	}
	if !res.Succeeded {
		b.sawOthers(rq, true)
		return 0, nil
	}
	b.stands(rq, rev)
	return rev, nil
}

// arrived records that a transaction which n.arriving counts has ended.
func (b *Backend) arrived(n *nameState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n.arriving--
}

// sawOthers records whether other requests were seen under a request's name.
func (b *Backend) sawOthers(rq *ownRequest, seen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nameOf(rq.Name).contended = seen
}

// resume examines the record under a request's key, which a transaction read with the queue. An
// earlier copy of the request is resumed. If the record is another one, or lacks its key in the
// queue, the request gets another key, and the revision is 0.
func (b *Backend) resume(rq *ownRequest, res *pb.TxnResponse, q *queue) (rev int64, err error) {
	queued := q.records[rq.inQueue()]
	r := queued
	if b.plain != nil {
		r = ownRecord(rq.Name, res)
	}
	own := r != nil && r.ID == rq.ID
	switch {
	case r == nil && queued == nil:
		return 0, nil
	case own && (r.tombstone || r.Broken):
		return 0, driver.ErrLost
	case own && queued != nil && queued.rev == r.rev:
		return r.rev, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// put by a late copy, or an operator deleted its key in the queue
	if orphan := r != nil && !r.tombstone && !r.Broken && (own || b.requests[r.ID] == nil); orphan {
		b.removeOrphan(rq.key, r.lease)
	} else {
		b.freeKey(rq.Name, rq.slot, time.Now().Add(time.Minute))
	}
	rq.key, rq.queueKey = "", ""
	return 0, nil
}

// try puts a request's key only if the request is granted then. So a request that has to be refused
// never blocks another one.
func (b *Backend) try(ctx context.Context, rq *ownRequest) error {
	prefix := b.queueOf(rq.Name)
	free := unchanged(prefix, 0) // there is no key
	for range 4 {
		l, a, err := b.prepare(ctx, rq)
		if err != nil {
			return err
		}
		res, rev, err := b.write(ctx, rq, &pb.TxnRequest{
			Compare: append(a.absent, free), Success: a.puts, Failure: append(a.own, rangeOp(prefix)),
		})
		switch {
		case isGone(err):
			b.leases.end(l)
			continue
		case err != nil:
			return err
		case res.Succeeded:
			b.stands(rq, rev)
			return nil
		}
		kvs, rev, err := b.whole(ctx, prefix, rangeIn(res), rev)
		if err != nil {
			return err
		}
		q := b.newQueue(rq.Name, kvs)
		if earlier, err := b.resume(rq, res, q); err != nil {
			return err
		} else if earlier != 0 { // a copy put it, when it was to be granted
			b.stands(rq, earlier)
			return nil
		}
		if _, err := q.admit(rq.Request, 0); err != nil {
			return err
		}
		if !q.grants(rq.Request) {
			return q.held(rq.inQueue())
		}
		free = unchanged(prefix, rev)
	}
	// Other requests come and go all the time. So the key is put at the end of the queue, and
	// removed if it would have to wait.
	if granted, err := b.put(ctx, rq); err != nil || granted {
		return err
	}
	if _, err := b.remove(ctx, rq); err != nil {
		return err
	}
	return driver.ErrHeld
}

// join puts the key of a join if the hold that it joins is unchanged.
func (b *Backend) join(ctx context.Context, rq *ownRequest) error {
	prefix := b.prefixOf(rq.Name)
	res, err := b.get(ctx, prefix, 0)
	if err != nil {
		return err
	}
	q := newQueue(rq.Name, res.Kvs)
	for {
		r, err := q.admit(rq.Request, 0)
		if err != nil {
			return err
		}
		l, a, err := b.prepare(ctx, rq)
		if err != nil {
			return err
		}
		held := q.covering(r)
		res, rev, err := b.write(ctx, rq, &pb.TxnRequest{
			Compare: append(a.absent, is(held.key, held.mod)),
			Success: []*pb.RequestOp{putOp(a.key, valueOf(r, false), l.id)},
			Failure: []*pb.RequestOp{rangeOp(prefix)},
		})
		if isGone(err) {
			b.leases.end(l)
			continue
		}
		if err != nil {
			return err
		}
		if !res.Succeeded {
			kvs, _, err := b.whole(ctx, prefix, rangeIn(res), rev)
			if err != nil {
				return err
			}
			q = newQueue(rq.Name, kvs)
			if rev, err = b.resume(rq, res, q); err != nil {
				return err
			} else if rev == 0 {
				continue
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		rq.stands(rev)
		rq.Token, rq.Limit = r.Token, r.Limit
		return nil
	}
}

// write sends a transaction that puts a request's key, and repeats it until it is answered.
func (b *Backend) write(ctx context.Context, rq *ownRequest, req *pb.TxnRequest) (res *pb.TxnResponse, rev int64, err error) {
	res, rev, err = b.txn(ctx, rq.Name, false, req, func(err error) {
		if outcomeOf(err) == kit.Unknown {
			b.mu.Lock()
			rq.uncertain = true
			b.mu.Unlock()
		}
	})
	if isFull(err) {
		b.checkPut(ctx, rq)
	}
	return res, rev, err
}

// checkPut finds out whether a request's key was put although the server said that it has no
// space: the transaction that takes the last of the space is executed.
func (b *Backend) checkPut(ctx context.Context, rq *ownRequest) {
	b.mu.Lock()
	key := rq.key
	b.mu.Unlock()
	var res *pb.RangeResponse
	err := b.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(key)}, callOptions...)
		return err
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		rq.uncertain = true
	} else if len(res.Kvs) > 0 {
		if r := decode(rq.Name, res.Kvs[0]); r.ID == rq.ID && !r.tombstone {
			rq.stands(r.rev)
		}
	}
}
