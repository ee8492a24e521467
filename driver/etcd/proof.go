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

// errTerm: the answers to the parts of a proof come from different terms of the cluster.
var errTerm = errors.New("the cluster's leader changed meanwhile")

// proof is what became of a lease's renewal.
type proof struct {
	since time.Time // before any of it was sent
	err   error     // ErrLost: the lease is gone
}

// prove renews leases, and audits their keys: a key of ours that is missing is lost, and one that
// none of our requests has is an orphan, and goes.
//
// A leader that was replaced without its knowledge could answer the keep-alive and the audit. So a
// linearizable read, which only a leader with a majority behind it can answer, is sent at the same
// time, and all three have to be answered in the same term: that leader was the leader after all of
// it had been sent.
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

// audit is what a keep-alive and a list of a lease's keys found.
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
	// What this client sends may arrive although it receives nothing. So it asks first, and does
	// not keep alive what it cannot use.
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

// conclude draws the conclusions of an audit, and those of found before the lease is trusted: a
// request that was found missing becomes no hold by it.
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
