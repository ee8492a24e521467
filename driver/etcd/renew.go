package etcd

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend]: a keep-alive and an audit for each lease, and one read, all
// sent at once.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	fail := func(err error) []driver.Renewal {
		for i := range res {
			res[i].Err = err
		}
		return res
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	asked := map[*lease][]int{}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return fail(driver.ErrClosed)
	}
	now := time.Now()
	for i, r := range rs {
		m := b.mine[r.ID]
		switch {
		case m == nil, m.over, !m.until.IsZero() && (m.lease == nil || now.After(m.until)):
			res[i].Err = driver.ErrLost
		case m.until.IsZero():
			res[i].Err = driver.ErrNotHeld
		default:
			asked[m.lease] = append(asked[m.lease], i)
		}
	}
	b.mu.Unlock()
	var ls []*lease
	for l := range asked {
		ls = append(ls, l)
	}
	for n, p := range b.prove(ctx, ls) {
		l := ls[n]
		b.mu.Lock()
		for _, i := range asked[l] {
			res[i] = b.renewed(b.mine[rs[i].ID], l, p)
		}
		b.mu.Unlock()
	}
	return res
}

// renewed is what a proof of its lease says of a request. b.mu is held.
func (b *Backend) renewed(m *mine, l *lease, p proof) driver.Renewal {
	switch {
	case m == nil, m.over, m.missing, m.lease != l, !time.Now().Before(m.until):
		return driver.Renewal{Err: driver.ErrLost}
	case p.err != nil:
		return driver.Renewal{Err: p.err}
	}
	if until := p.since.Add(l.ttl); until.After(m.until) {
		m.until = until
	}
	return driver.Renewal{TTL: l.ttl, SentAt: p.since}
}

// proof is what became of a lease's renewal.
type proof struct {
	since time.Time // before any of it was sent
	err   error     // ErrLost: the lease is gone
}

// prove renews leases, and audits their keys: what of ours is missing there is lost, what is there
// and not ours was put by a late copy and goes.
//
// A leader that was replaced without its knowledge could answer the keep-alive and the audit. So a
// linearizable read, which only a leader with a majority behind it can answer, is sent at the same
// time, and all three have to be answered in the same term: that leader was the leader after all of
// it had been sent.
func (b *Backend) prove(ctx context.Context, ls []*lease) []proof {
	ps := make([]proof, len(ls))
	if len(ls) == 0 {
		return ps
	}
	ttl := slices.MinFunc(ls, func(a, b *lease) int { return cmp.Compare(a.ttl, b.ttl) }).ttl
	now := time.Now()
	read := make(chan struct{})
	var term uint64
	var failed error
	go func() {
		defer close(read)
		var res *pb.RangeResponse
		res, failed = insist(b, ctx, ttl, func(ctx context.Context) (*pb.RangeResponse, error) {
			return b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(b.base)}, callOptions...)
		})
		term = res.GetHeader().GetRaftTerm()
	}()
	var wg sync.WaitGroup
	for i, l := range ls {
		wg.Go(func() {
			a := b.audit(ctx, l)
			<-read
			switch {
			case a.err != nil:
			case failed != nil:
				a.err = failed
			case a.term != term:
				a.err = errTerm
			}
			ps[i] = b.judgeProof(l, now, a)
		})
	}
	wg.Wait()
	return ps
}

// audit is what a keep-alive and a look at a lease's keys found.
type audit struct {
	term uint64
	gone bool
	keys map[string]bool
	// the requests of which the keys have to be there, and the revisions that put them
	stood map[*mine]int64
	err   error
}

func (b *Backend) audit(ctx context.Context, l *lease) audit {
	a := audit{stood: map[*mine]int64{}}
	b.mu.Lock()
	for _, m := range b.mine {
		if m.lease == l && m.rev != 0 && !m.over {
			a.stood[m] = m.rev
		}
	}
	lapsed := time.Since(l.since) >= l.ttl
	b.mu.Unlock()
	var res *pb.LeaseTimeToLiveResponse
	look := func() (err error) {
		res, err = insist(b, ctx, l.ttl, func(ctx context.Context) (*pb.LeaseTimeToLiveResponse, error) {
			return b.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: l.id, Keys: true}, callOptions...)
		})
		return err
	}
	if lapsed { // whoever hears nothing may be heard: it must not keep alive what it cannot use
		if a.err = look(); a.err != nil {
			return a
		}
	}
	var alive *pb.LeaseKeepAliveResponse
	kept := make(chan error, 1)
	go func() {
		tried := map[*keepStream]bool{}
		var err error
		alive, err = insist(b, ctx, l.ttl, func(ctx context.Context) (*pb.LeaseKeepAliveResponse, error) {
			return b.alive.keep(ctx, l.id, tried)
		})
		kept <- err
	}()
	a.err = look()
	if err := <-kept; a.err == nil {
		a.err = err
	}
	if a.err != nil {
		return a
	}
	a.term = res.Header.RaftTerm
	a.gone = alive.TTL <= 0
	// (res.TTL is 0 in a lease's last second too)
	if none := res.GrantedTTL == 0; alive.Header.RaftTerm != a.term || none != a.gone {
		a.err = errTerm
		return a
	}
	a.keys = make(map[string]bool, len(res.Keys))
	for _, k := range res.Keys {
		a.keys[string(k)] = true
	}
	return a
}

// insist asks for a part of a proof until it is answered or ctx ends. If an answer takes long it
// asks again, which may lead to another member, and goes on waiting for the first: so neither a
// dead member nor a long line is in the way.
func insist[T any](b *Backend, ctx context.Context, ttl time.Duration, ask func(ctx context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	const abreast = 4
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	answers := make(chan answer, abreast)
	under := 0
	begin := func() {
		under++
		go func() {
			var a answer
			a.err = b.attempt(ctx, 2*lastTry, func(ctx context.Context) (err error) {
				a.v, err = ask(ctx)
				return err
			})
			answers <- a
		}()
	}
	begin()
	late, wait := min(max(ttl/8, 100*time.Millisecond), time.Second), 5*time.Millisecond
	next := time.NewTimer(late)
	defer next.Stop()
	last := errNoAnswer
	for {
		var none T
		select {
		case a := <-answers:
			switch {
			case a.err == nil:
				return a.v, nil
			case b.ctx.Err() != nil:
				return none, driver.ErrClosed
			case ctx.Err() != nil:
				return none, &ended{ctx.Err(), last}
			case judge(a.err) == answered:
				return none, explain(a.err)
			}
			last = plain(a.err)
			if under--; under == 0 {
				b.rest(ctx, wait)
				wait = min(2*wait, 100*time.Millisecond)
				begin()
			}
		case <-next.C:
			b.suspect()
			if under < abreast {
				begin()
			}
			late *= 2
			next.Reset(late)
		case <-ctx.Done():
			return none, &ended{ctx.Err(), last}
		case <-b.ctx.Done():
			return none, driver.ErrClosed
		}
	}
}

// judgeProof draws the conclusions of an audit.
func (b *Backend) judgeProof(l *lease, since time.Time, a audit) proof {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case a.err != nil:
		return proof{err: a.err}
	case l.gone:
		return proof{err: driver.ErrLost}
	case a.gone:
		b.dead(l)
		return proof{err: driver.ErrLost}
	}
	if since.After(l.since) {
		l.since = since
	}
	for m, rev := range a.stood {
		if !a.keys[m.key] && m.lease == l && m.rev == rev {
			b.vanished(m)
		}
	}
	strange := map[string]bool{}
	for key := range a.keys {
		if b.names.uses(b, key) {
			continue
		}
		if l.strange[key] {
			b.names.expel(b, key)
		} else {
			strange[key] = true
		}
	}
	l.strange = strange
	return proof{since: since}
}
