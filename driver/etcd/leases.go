package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// maxRequests is the greatest number of requests that share a lease. A put costs the server a
// little work for each key of its lease.
const maxRequests = 1000

// leases are the leases of a client: those that requests of one TTL share, those of one fixed
// request each, and those of tombstones. It knows only how many requests use a lease, not which. It
// is safe for concurrent use.
type leases struct {
	*cluster
	keepAlives keepAlives

	// The following functions are set before the first call, and called without mu.

	// expect is called before an audit of a lease. The function that it returns is called with the
	// keys that the audit found, and the orphans of the audit before; it returns the orphans of
	// this audit.
	expect func(*lease) (found func(keys, orphans map[string]bool) map[string]bool)
	ended  func(*lease) // the server does not have a lease any more
	began  func()       // there is a lease, and the keeper has to run

	mu         sync.Mutex
	pools      map[int64]*pool  // shared leases by class
	fixed      map[*lease]bool  // leases of one request
	tombstones map[int64]*lease // leases for tombstones, by class; none is kept alive
}

func newLeases(c *cluster) *leases {
	ls := &leases{cluster: c, pools: map[int64]*pool{}, fixed: map[*lease]bool{}, tombstones: map[int64]*lease{}}
	ls.keepAlives.c = c
	return ls
}

// pool has the shared leases of one class. A caller that grants or proves one of them holds its
// turn.
type pool struct {
	leases []*lease
	turn   chan struct{}
}

func newPool(ls ...*lease) *pool { return &pool{leases: ls, turn: make(chan struct{}, 1)} }

// pick returns a lease with room, or nil.
func (p *pool) pick() *lease {
	for _, l := range p.leases {
		if !l.gone && l.requests < maxRequests {
			return l
		}
	}
	return nil
}

// poolOf returns the pool of a class.
func (ls *leases) poolOf(c int64) *pool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p := ls.pools[c]
	if p == nil {
		p = newPool()
		ls.pools[c] = p
	}
	return p
}

// pick returns a lease of a pool that has room, or nil. A fresh lease is assigned to the caller.
func (ls *leases) pick(p *pool) (l *lease, fresh bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l = p.pick(); l == nil || !l.fresh() {
		return l, false
	}
	l.requests++
	l.used = time.Now()
	return l, true
}

// take returns a lease for a request, of which at least half of the time is left.
func (ls *leases) take(ctx context.Context, ttl time.Duration, fixed bool) (*lease, error) {
	if fixed {
		l, err := ls.grant(ctx, ttl)
		if err != nil {
			return nil, err
		}
		ls.mu.Lock()
		defer ls.mu.Unlock()
		l.fixed, l.requests = true, 1
		ls.fixed[l] = true
		return l, nil
	}
	p := ls.poolOf(class(ttl))
	if l, fresh := ls.pick(p); fresh {
		return l, nil
	}
	if err := ls.takeTurn(ctx, p.turn); err != nil {
		return nil, err
	}
	defer func() { <-p.turn }()
	for {
		l, fresh := ls.pick(p)
		if fresh {
			return l, nil
		}
		if l != nil {
			if err := ls.refresh(ctx, l); err != nil && !errors.Is(err, driver.ErrLost) {
				return nil, err
			}
			continue
		}
		l, err := ls.grant(ctx, ttl)
		if err != nil {
			return nil, err
		}
		ls.mu.Lock()
		p.leases = append(p.leases, l)
		ls.mu.Unlock()
	}
}

// forTombstone returns a lease for a tombstone that has to stand for the TTL, and the time when the
// lease ends.
func (ls *leases) forTombstone(ctx context.Context, ttl time.Duration) (id int64, until time.Time, err error) {
	c := class(ttl)
	ls.mu.Lock()
	l := ls.tombstones[c]
	// the end of a lease deletes all its keys at once
	usable := l != nil && time.Since(l.since) <= l.ttl-ttl-time.Second && l.requests < maxRequests
	if usable {
		l.requests++
	}
	ls.mu.Unlock()
	if !usable {
		if l, err = ls.grant(ctx, 2*ttl+2*time.Second); err != nil {
			return 0, time.Time{}, err
		}
		ls.mu.Lock()
		l.requests++
		ls.tombstones[c] = l
		ls.mu.Unlock()
	}
	return l.id, l.since.Add(l.ttl), nil
}

// dropTombstones records that the server does not know the lease for tombstones of a TTL.
func (ls *leases) dropTombstones(ttl time.Duration) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.tombstones, class(ttl))
}

// grant requests a lease from the server. If the answer is lost the lease expires by itself.
func (ls *leases) grant(ctx context.Context, ttl time.Duration) (*lease, error) {
	l := &lease{of: ls}
	err := ls.repeat(ctx, func(ctx context.Context) error {
		l.since = time.Now()
		res, err := ls.lessor.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: class(ttl)}, callOptions...)
		if err != nil {
			return err
		}
		l.id, l.ttl = res.ID, time.Duration(res.TTL)*time.Second
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.used = time.Now()
	ls.began()
	return l, nil
}

// refresh proves a lease until at least half of its time is left.
func (ls *leases) refresh(ctx context.Context, l *lease) error {
	end := time.Now().Add(patience)
	for {
		p := ls.proveOne(ctx, l, max(time.Until(end), time.Second))
		switch {
		case p.err == nil && time.Since(p.since) < l.ttl/2:
			return nil
		case errors.Is(p.err, driver.ErrLost), ls.life.Over():
			return p.err
		case time.Now().After(end):
			var e *ended
			switch {
			case p.err == nil:
				p.err = errNoAnswer
			case ctx.Err() == nil && errors.As(p.err, &e): // the bound of the attempt ended it
				p.err = e.why
			}
			return &unanswered{fmt.Errorf("the lease could not be renewed: %w", p.err)}
		}
		_ = kit.Pause(ctx, ls.life.Closed(), 20*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (ls *leases) proveOne(ctx context.Context, l *lease, most time.Duration) proof {
	ctx, cancel := context.WithTimeout(ctx, min(max(l.ttl/3, time.Second), most))
	defer cancel()
	return ls.prove(ctx, []*lease{l})[0]
}

// end records that the server does not have a lease any more.
func (ls *leases) end(l *lease) {
	ls.mu.Lock()
	l.gone = true
	ls.forget(l)
	ls.mu.Unlock()
	ls.ended(l)
}

// forget removes a lease from the client's own. mu is held.
func (ls *leases) forget(l *lease) {
	delete(ls.fixed, l)
	for _, p := range ls.pools {
		p.leases = slices.DeleteFunc(p.leases, func(x *lease) bool { return x == l })
	}
}

// own returns all leases under which requests stand.
func (ls *leases) own() (all []*lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for l := range ls.fixed {
		all = append(all, l)
	}
	for _, p := range ls.pools {
		all = append(all, p.leases...)
	}
	return all
}

// haveFixed reports whether there is a lease of a fixed request.
func (ls *leases) haveFixed() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.fixed) > 0
}

// revoke ends a lease, and with it all keys that stand or may still arrive under it.
func (ls *leases) revoke(ctx context.Context, l *lease) error {
	_, err := ls.lessor.LeaseRevoke(clientv3.WithRequireLeader(ctx), &pb.LeaseRevokeRequest{ID: l.id}, callOptions...)
	if isGone(err) {
		return nil
	}
	return err
}

// revokeFixed revokes the lease of a fixed request that has ended, in the background, until the
// call is answered or the lease must have expired.
func (ls *leases) revokeFixed(l *lease) {
	ls.mu.Lock()
	already := l.gone
	l.gone = true
	ls.mu.Unlock()
	if !already {
		ls.life.Go(func() { ls.revokeUntilOver(l) })
	}
}

func (ls *leases) revokeUntilOver(l *lease) {
	for end := time.Now().Add(l.ttl); time.Now().Before(end); {
		if ls.attempt(ls.life.Context(), lastTry, func(ctx context.Context) error { return ls.revoke(ctx, l) }) == nil {
			break
		}
		if kit.Pause(ls.life.Context(), nil, 100*time.Millisecond) != nil {
			return // Close revokes it
		}
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.forget(l)
}

// revokeAll revokes leases for Close, as many as it can within two seconds.
func (ls *leases) revokeAll(all []*lease) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	queue := make(chan *lease, len(all))
	for _, l := range all {
		queue <- l
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(16, len(all)) {
		wg.Go(func() {
			for l := range queue {
				for ctx.Err() == nil && ls.revokeOnce(ctx, l) != nil {
					_ = kit.Pause(ctx, nil, 20*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
}

func (ls *leases) revokeOnce(ctx context.Context, l *lease) error {
	ctx, cancel := context.WithTimeout(ctx, firstTry)
	defer cancel()
	return ls.revoke(ctx, l)
}
