package etcd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver"
)

// errTerm: the parts of a proof were answered in different terms of the cluster.
var errTerm = errors.New("the cluster's leader changed meanwhile")

// proof is the result of a lease's renewal.
type proof struct {
	since time.Time // a time before any part of it was sent
	err   error     // ErrLost: the lease is gone
}

// prove renews leases, and audits their keys: a request whose key is missing has lost it, and a key
// that belongs to none of our requests is an orphan, which is deleted.
//
// A leader that was replaced without its knowledge could answer the keep-alive and the audit. So a
// linearizable read, which only a leader with a majority can answer, is sent at the same time, and
// all three have to be answered in the same term: then that leader was still the leader after all
// of them had been sent.
func (ls *leases) prove(ctx context.Context, all []*lease) []proof {
	ps := make([]proof, len(all))
	if len(all) == 0 {
		return ps
	}
	ttl := slices.MinFunc(all, func(a, b *lease) int { return cmp.Compare(a.ttl, b.ttl) }).ttl
	now := time.Now()
	read := make(chan struct{})
	var term uint64
	var failed error
	go func() {
		defer close(read)
		var res *pb.RangeResponse
		res, failed = hedged(ls.cluster, ctx, ttl, func(ctx context.Context) (*pb.RangeResponse, error) {
			return ls.kv.Range(ctx, &pb.RangeRequest{Key: []byte(ls.base)}, callOptions...)
		})
		term = res.GetHeader().GetRaftTerm()
	}()
	var wg sync.WaitGroup
	for i, l := range all {
		wg.Go(func() {
			found := ls.expect(l)
			a := ls.audit(ctx, l)
			<-read
			switch {
			case a.err != nil:
			case failed != nil:
				a.err = failed
			case a.term != term:
				a.err = errTerm
			}
			ps[i] = ls.conclude(l, now, a, found)
		})
	}
	wg.Wait()
	return ps
}

// audit is the result of a keep-alive and a list of a lease's keys.
type audit struct {
	term uint64
	gone bool
	keys map[string]bool
	err  error
}

// audit keeps a lease alive and lists its keys.
func (ls *leases) audit(ctx context.Context, l *lease) (a audit) {
	since, _ := l.trust()
	lapsed := time.Since(since) >= l.ttl
	var res *pb.LeaseTimeToLiveResponse
	list := func() (err error) {
		res, err = hedged(ls.cluster, ctx, l.ttl, func(ctx context.Context) (*pb.LeaseTimeToLiveResponse, error) {
			return ls.lessor.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: l.id, Keys: true}, callOptions...)
		})
		return err
	}
	// Calls of this client may arrive although it receives no answers. So it first queries a lease
	// that may have expired, and does not keep alive a lease that it cannot use.
	if lapsed {
		if a.err = list(); a.err != nil {
			return a
		}
	}
	var alive *pb.LeaseKeepAliveResponse
	kept := make(chan error, 1)
	go func() {
		tried := map[*keepStream]bool{}
		var err error
		alive, err = hedged(ls.cluster, ctx, l.ttl, func(ctx context.Context) (*pb.LeaseKeepAliveResponse, error) {
			return ls.keepAlives.send(ctx, l.id, tried)
		})
		kept <- err
	}()
	a.err = list()
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

// conclude acts on an audit. It calls found before the lease is trusted, so that a request whose
// key is missing does not become a hold by this proof.
func (ls *leases) conclude(l *lease, since time.Time, a audit, found func(keys, orphans map[string]bool) map[string]bool) proof {
	ls.mu.Lock()
	gone, orphans := l.gone, l.orphans
	ls.mu.Unlock()
	switch {
	case a.err != nil:
		return proof{err: a.err}
	case gone:
		return proof{err: driver.ErrLost}
	case a.gone:
		ls.end(l)
		return proof{err: driver.ErrLost}
	}
	orphans = found(a.keys, orphans)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.orphans = orphans
	if since.After(l.since) {
		l.since = since
	}
	return proof{since: since}
}
