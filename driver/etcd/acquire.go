package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver"
)

// value is what is written under the key of a request.
func value(r driver.Request, grave bool) string {
	return (&record{Entry: driver.Entry{Request: r}, arrived: time.Now(), grave: grave}).encode()
}

// ready gives a request a lease and a key, if it lacks them.
func (b *Backend) ready(ctx context.Context, m *mine) (*lease, string, error) {
	for {
		b.mu.Lock()
		if m.ends() {
			b.mu.Unlock()
			return nil, "", driver.ErrLost
		}
		if l := m.lease; l != nil {
			defer b.mu.Unlock()
			if m.key == "" {
				b.slot(m)
			}
			return l, m.key, nil
		}
		b.mu.Unlock()
		if err := b.use(ctx, m); err != nil {
			return nil, "", err
		}
	}
}

// write sends a transaction that puts the request's key until it is answered.
func (b *Backend) write(ctx context.Context, m *mine, req *pb.TxnRequest) (res *pb.TxnResponse, rev int64, err error) {
	res, rev, err = b.txn(ctx, m.r.Name, req, func(err error) {
		if judge(err) == unknown {
			b.mu.Lock()
			m.uncertain = true
			b.mu.Unlock()
		}
	})
	if isFull(err) {
		b.find(ctx, m)
	}
	return res, rev, err
}

// txn sends a transaction on a name until it is answered. Failed is told each error.
func (b *Backend) txn(ctx context.Context, name string, req *pb.TxnRequest, failed func(error)) (res *pb.TxnResponse, rev int64, err error) {
	err = b.again(ctx, func(ctx context.Context, try time.Duration) (line time.Duration, err error) {
		if res, rev, line, err = b.txns.txn(ctx, try, name, req); err != nil {
			failed(err)
		}
		return line, err
	})
	return res, rev, err
}

// find looks whether a request's key stands although the server said that it has no space: what
// takes the last of it is executed.
func (b *Backend) find(ctx context.Context, m *mine) {
	b.mu.Lock()
	key := m.key
	b.mu.Unlock()
	var res *pb.RangeResponse
	err := b.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(key)}, callOptions...)
		return err
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		m.uncertain = true
	} else if len(res.Kvs) > 0 {
		if r := decode(m.r.Name, res.Kvs[0]); r.ID == m.r.ID && !r.grave {
			m.stands(r.rev)
		}
	}
}

// line puts a request at the end of the queue, and returns when it is granted.
func (b *Backend) line(ctx context.Context, m *mine) error {
	for {
		var in bool
		err := outlast(ctx, m.r, func() (err error) {
			in, err = b.stand(ctx, m)
			return err
		})
		if in || err != nil {
			return err
		}
		b.mu.Lock()
		if m.ends() {
			b.mu.Unlock()
			return driver.ErrLost
		}
		if m.rev != 0 {
			b.await(m)
		}
		b.mu.Unlock()
		if err := b.sleep(ctx, m); err != nil {
			return err
		}
		b.mu.Lock()
		again, over, refusal := m.rev == 0, m.ends(), m.refusal
		b.mu.Unlock()
		switch {
		case over:
			return driver.ErrLost
		case refusal != nil:
			return refusal
		case !again:
			return nil
		}
	}
}

// sleep returns when a request that waits is granted, refused, or does not stand any more.
func (b *Backend) sleep(ctx context.Context, m *mine) error {
	for {
		b.mu.Lock()
		done := m.granted || m.ends() || m.refusal != nil || m.rev == 0
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return driver.Waited(ctx)
		case <-b.ctx.Done():
			return driver.ErrClosed
		}
	}
}

// stand puts a request's key, and reports whether it is granted at once. It reads what stands ahead
// by the same transaction, unless the hub knows that it has to wait anyway, or will tell: while
// another request of this client comes to the name, which reads it. So of thousands that come at
// once few read the queue, which has thousands of keys then.
func (b *Backend) stand(ctx context.Context, m *mine) (in bool, err error) {
	for {
		l, key, err := b.ready(ctx, m)
		if err != nil {
			return false, err
		}
		b.mu.Lock()
		n := b.of(m.r.Name)
		free, blind := !n.shared && n.coming == 0, n.q != nil && len(n.q.order) > small || n.coming > 0
		n.coming++
		b.mu.Unlock()
		if free { // most likely nobody is there, and the shortest transaction does
			rev, err := b.first(ctx, m, l, key)
			n.came(b)
			if isGone(err) {
				b.buryLease(l)
			} else if rev != 0 || err != nil {
				return rev != 0, err
			}
			continue
		}
		look := rangeOp(n.folder)
		req := &pb.TxnRequest{
			Compare: []*pb.Compare{absent(key)},
			Success: []*pb.RequestOp{putOp(key, value(m.r, false), l.id), look},
			Failure: []*pb.RequestOp{look},
		}
		if blind {
			req.Success = req.Success[:1]
		}
		res, rev, err := b.write(ctx, m, req)
		n.came(b)
		if isGone(err) {
			b.buryLease(l)
			continue
		}
		if err != nil {
			return false, err
		}
		if blind && res.Succeeded {
			b.stands(m, rev)
			return false, nil
		}
		there := rangeIn(res).Kvs
		if res.Succeeded && len(there) == 1 { // its own
			b.busy(m, false)
			b.stands(m, rev)
			return true, nil
		}
		q := read(m.r.Name, there)
		if !res.Succeeded {
			if rev, err = b.resumed(m, q); err != nil {
				return false, err
			} else if rev == 0 {
				continue
			}
		}
		b.stands(m, rev)
		if _, err := q.ahead(rev).Admit(m.r); err != nil {
			return false, err
		}
		b.mu.Lock()
		m.checked = true
		b.mu.Unlock()
		return q.place(rev) < q.d.Granted(), nil
	}
}

// first puts a request's key if there is no other under the name.
func (b *Backend) first(ctx context.Context, m *mine, l *lease, key string) (rev int64, err error) {
	res, rev, err := b.write(ctx, m, &pb.TxnRequest{
		Compare: []*pb.Compare{unchanged(b.folder(m.r.Name), 0)},
		Success: []*pb.RequestOp{putOp(key, value(m.r, false), l.id)},
	})
	if err != nil {
		return 0, err
	}
	if !res.Succeeded {
		b.busy(m, true)
		return 0, nil
	}
	b.stands(m, rev)
	return rev, nil
}

// busy takes note of whether others were seen under a request's name.
func (b *Backend) busy(m *mine, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(m.r.Name).shared = is
}

func (b *Backend) stands(m *mine, rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.stands(rev)
}

// stands takes note of the revision that put the request's key. If the lease was found dead
// meanwhile, the key went with it. b.mu is held.
func (m *mine) stands(rev int64) {
	if m.lease != nil {
		m.rev, m.granted, m.checked = rev, false, false
	}
}

// resumed finds out what stands under a request's key: an earlier copy of it, or something that was
// left there: then it gets another key.
func (b *Backend) resumed(m *mine, q *queue) (rev int64, err error) {
	r := q.records[m.key]
	switch {
	case r == nil:
		return 0, nil
	case r.ID != m.r.ID:
		b.mu.Lock()
		defer b.mu.Unlock()
		if !r.grave && !r.Broken && b.mine[r.ID] == nil { // put by a late copy
			b.names.expel(b, m.key)
		} else {
			b.free(m.r.Name, m.slot, time.Now().Add(time.Minute))
		}
		m.key = ""
		return 0, nil
	case r.grave || r.Broken:
		return 0, driver.ErrLost
	}
	return r.rev, nil
}

// try puts a request's key if it is granted then. So what has to be refused never stands in
// anybody's way.
func (b *Backend) try(ctx context.Context, m *mine) error {
	folder := b.folder(m.r.Name)
	free := unchanged(folder, 0) // nothing is there
	for range 4 {
		l, key, err := b.ready(ctx, m)
		if err != nil {
			return err
		}
		res, rev, err := b.write(ctx, m, &pb.TxnRequest{
			Compare: []*pb.Compare{free, absent(key)},
			Success: []*pb.RequestOp{putOp(key, value(m.r, false), l.id)},
			Failure: []*pb.RequestOp{rangeOp(folder)},
		})
		switch {
		case isGone(err):
			b.buryLease(l)
			continue
		case err != nil:
			return err
		case res.Succeeded:
			b.stands(m, rev)
			return nil
		}
		q := read(m.r.Name, rangeIn(res).Kvs)
		if mine, err := b.resumed(m, q); err != nil {
			return err
		} else if mine != 0 { // an earlier copy put it, when it was to be granted
			b.stands(m, mine)
			return nil
		}
		if _, err := q.d.Admit(m.r); err != nil {
			return err
		}
		if !q.admits(m.r) {
			return driver.ErrHeld
		}
		free = unchanged(folder, rev)
	}
	// Others come and go all the time. So it takes a place, and leaves it again if it has to wait.
	if in, err := b.stand(ctx, m); err != nil || in {
		return err
	}
	if _, err := b.remove(ctx, m); err != nil {
		return err
	}
	return driver.ErrHeld
}

// buryLease takes note that the server does not know a lease.
func (b *Backend) buryLease(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead(l)
}

// admits reports whether a stranger that came now would be granted.
func (q *queue) admits(r driver.Request) bool {
	d := q.d
	d.Arrivals = append(d.Arrivals[:len(d.Arrivals):len(d.Arrivals)], &driver.Entry{Request: r})
	return d.Granted() == len(d.Arrivals)
}

// join puts the key of a join, if the hold that it joins still stands then.
func (b *Backend) join(ctx context.Context, m *mine) error {
	folder := b.folder(m.r.Name)
	res, err := b.get(ctx, folder)
	if err != nil {
		return err
	}
	q := read(m.r.Name, res.Kvs)
	for {
		r, err := q.d.Admit(m.r)
		if err != nil {
			return err
		}
		l, key, err := b.ready(ctx, m)
		if err != nil {
			return err
		}
		under := q.cover(r)
		res, rev, err := b.write(ctx, m, &pb.TxnRequest{
			Compare: []*pb.Compare{is(under.key, under.mod), absent(key)},
			Success: []*pb.RequestOp{putOp(key, value(r, false), l.id)},
			Failure: []*pb.RequestOp{rangeOp(folder)},
		})
		if isGone(err) {
			b.buryLease(l)
			continue
		}
		if err != nil {
			return err
		}
		if !res.Succeeded {
			q = read(m.r.Name, rangeIn(res).Kvs)
			if rev, err = b.resumed(m, q); err != nil {
				return err
			} else if rev == 0 {
				continue
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		m.stands(rev)
		m.r.Token, m.r.Limit = r.Token, r.Limit
		return nil
	}
}

// cover returns a request of the hold that a join was admitted to, in a mode that covers its own.
func (q *queue) cover(r driver.Request) *record {
	for _, x := range append(q.order[:q.d.Granted():q.d.Granted()], q.joins...) {
		if x.Owner == r.Owner && x.Mode.Covers(r.Mode) {
			return x
		}
	}
	return nil
}

// remove removes a request's key, and reports whether it was there as it had been put. Where a copy
// of the acquire may be under way it leaves a tombstone, which expires by itself; but not in a
// server without space, where a copy puts nothing either: what one puts later is a stray. A copy of
// what it sends does nothing to whoever has the key by then.
func (b *Backend) remove(ctx context.Context, m *mine) (was bool, err error) {
	b.mu.Lock()
	key, rev, l, leaving := m.key, m.rev, m.lease, m.leaving
	// a fixed lease is given back, and then nothing arrives under it
	uncertain := m.uncertain && !(l != nil && l.fixed)
	if key == "" || rev == 0 && !m.uncertain || l != nil && l.gone {
		b.gone(m, time.Time{}) // there is nothing, nor will there be
		b.mu.Unlock()
		return false, nil
	}
	b.mu.Unlock()
	var until time.Time
	away := deleteOp(key)
	if uncertain {
		var id int64
		switch id, until, err = b.grave(ctx, m.r.TTL); {
		case isFull(err):
			uncertain = false
		case err != nil:
			return false, err
		default:
			away = putOp(key, value(m.r, true), id)
		}
	}
	for mod := rev; ; {
		req := &pb.TxnRequest{Compare: []*pb.Compare{is(key, mod)}, Success: []*pb.RequestOp{away}, Failure: []*pb.RequestOp{keyOp(key)}}
		var res *pb.TxnResponse
		res, _, err = b.txn(ctx, m.r.Name, req, func(err error) {
			// what takes the last of the space is executed
			if judge(err) == unknown || isFull(err) {
				b.mu.Lock()
				m.tries++
				b.mu.Unlock()
			}
		})
		if uncertain && isFull(err) {
			away, uncertain, until = deleteOp(key), false, time.Time{}
			continue
		}
		if isGone(err) { // the tombstone's lease
			b.mu.Lock()
			delete(b.graves, class(m.r.TTL))
			b.mu.Unlock()
		}
		if err != nil {
			return false, err
		}
		if res.Succeeded {
			was = mod == rev && rev != 0
			break
		}
		next := int64(0) // it is not there: a tombstone can be put
		if kvs := rangeIn(res).Kvs; len(kvs) > 0 {
			r := decode(m.r.Name, kvs[0])
			// not ours to remove; broken, it stands until whoever held it cannot be in
			if r.ID != m.r.ID || r.grave || r.Broken && !leaving {
				until = time.Now().Add(time.Minute)
				break
			}
			next = r.mod // broken by an operator, or put by a copy that came late
		} else if !uncertain {
			break
		}
		mod = next
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone(m, until)
	return was, nil
}

// gone takes note that a request's key was removed, with a tombstone until then. If it was released
// that is its end. b.mu is held.
func (b *Backend) gone(m *mine, until time.Time) {
	if m.key != "" {
		b.left(m)
		b.free(m.r.Name, m.slot, until)
		m.key, m.rev = "", 0
	}
	l := m.lease
	m.leave()
	if l != nil && l.fixed && !l.gone {
		l.gone = true
		b.spawn(func() { b.surrender(l) })
	}
	if m.leaving && !m.over {
		b.finish(m)
	}
}

// surrender gives a fixed lease back, until it is answered or must have expired.
func (b *Backend) surrender(l *lease) {
	for over := time.Now().Add(l.ttl); time.Now().Before(over); {
		if b.attempt(b.ctx, lastTry, func(ctx context.Context) error { return b.revoke(ctx, l) }) == nil {
			break
		}
		if pause(b.ctx, 100*time.Millisecond) != nil {
			return // Close does it
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLease(l)
}

// erase deletes a key that no request has.
func (b *Backend) erase(name, key string) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		var res *pb.RangeResponse
		err := b.repeat(b.ctx, func(ctx context.Context) (err error) {
			res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(key)}, callOptions...)
			return err
		})
		if err == nil && len(res.Kvs) > 0 {
			req := &pb.TxnRequest{Compare: []*pb.Compare{is(key, res.Kvs[0].ModRevision)}, Success: []*pb.RequestOp{deleteOp(key)}}
			_, _, err = b.txn(b.ctx, name, req, func(error) {})
		}
		if err == nil {
			return nil
		}
		if err := pause(b.ctx, wait); err != nil {
			return err
		}
	}
}
