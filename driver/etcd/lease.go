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

// maxKeys is how many keys share a lease. A put costs the server a little for each key of its
// lease.
const maxKeys = 1000

// lease is a lease of this client. The backend's mu guards what changes.
type lease struct {
	id    int64
	ttl   time.Duration // as the server granted it
	fixed bool          // of one request, and kept alive only while that waits

	since   time.Time       // before the last proof that it exists was sent
	used    time.Time       // when it was last assigned to a request
	keys    int             // requests that have it
	waiting int             // those of them that wait
	gone    bool            // the server does not have it any more
	proving bool            // by the keeper
	retry   time.Time       // when the keeper tries again
	orphans map[string]bool // those that the last audit found
}

// fresh reports whether at least half of the lease's time is left for sure.
func (l *lease) fresh() bool { return time.Since(l.since) < l.ttl/2 }

// class is a TTL in whole seconds, as the server counts.
func class(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// pool are the shared leases of one class. Whoever grants or proves one of them has its turn.
type pool struct {
	leases []*lease
	turn   chan struct{}
}

func newPool(ls ...*lease) *pool { return &pool{leases: ls, turn: make(chan struct{}, 1)} }

// pick returns a lease with room, or nil.
func (p *pool) pick() *lease {
	for _, l := range p.leases {
		if !l.gone && l.keys < maxKeys {
			return l
		}
	}
	return nil
}

// attach gives the request the lease. The backend's mu is held.
func (rq *ownRequest) attach(l *lease) {
	rq.lease = l
	l.keys++
	l.used = time.Now()
}

// detach takes the lease from the request, if it has one. The backend's mu is held.
func (rq *ownRequest) detach() {
	if rq.lease != nil {
		rq.setWaiting(false)
		rq.lease.keys--
		rq.lease = nil
	}
}

// setWaiting records whether the request waits in the queue. The backend's mu is held.
func (rq *ownRequest) setWaiting(waiting bool) {
	if rq.waiting != waiting {
		rq.waiting = waiting
		if rq.lease != nil {
			rq.lease.waiting += map[bool]int{true: 1, false: -1}[waiting]
		}
	}
}

// assignLease gives a request a lease of which at least half of the time is left.
func (b *Backend) assignLease(ctx context.Context, rq *ownRequest) error {
	if rq.Fixed {
		l, err := b.grant(ctx, rq.TTL)
		if err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		l.fixed = true
		b.fixed[l] = true
		b.awaitNotices()
		rq.attach(l)
		return nil
	}
	c := class(rq.TTL)
	b.mu.Lock()
	p := b.pools[c]
	if p == nil {
		p = newPool()
		b.pools[c] = p
	}
	l := p.pick()
	if l != nil && l.fresh() {
		rq.attach(l)
		b.mu.Unlock()
		return nil
	}
	b.mu.Unlock()
	if err := b.takeTurn(ctx, p.turn); err != nil {
		return err
	}
	defer func() { <-p.turn }()
	for {
		b.mu.Lock()
		l := p.pick()
		if l != nil && l.fresh() {
			rq.attach(l)
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
		if l != nil {
			if err := b.refresh(ctx, l); err != nil && !errors.Is(err, driver.ErrLost) {
				return err
			}
			continue
		}
		l, err := b.grant(ctx, rq.TTL)
		if err != nil {
			return err
		}
		b.mu.Lock()
		p.leases = append(p.leases, l)
		b.awaitNotices()
		b.mu.Unlock()
	}
}

// grant asks the server for a lease. If the answer is lost the lease expires by itself.
func (b *Backend) grant(ctx context.Context, ttl time.Duration) (*lease, error) {
	l := &lease{}
	err := b.repeat(ctx, func(ctx context.Context) error {
		l.since = time.Now()
		res, err := b.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: class(ttl)}, callOptions...)
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
	b.mu.Lock()
	b.startKeeper()
	b.mu.Unlock()
	return l, nil
}

// refresh proves a lease until at least half of its time is left.
func (b *Backend) refresh(ctx context.Context, l *lease) error {
	end := time.Now().Add(patience)
	for {
		p := b.proveOne(ctx, l, max(time.Until(end), time.Second))
		switch {
		case p.err == nil && time.Since(p.since) < l.ttl/2:
			return nil
		case errors.Is(p.err, driver.ErrLost), b.life.Over():
			return p.err
		case time.Now().After(end):
			var e *ended
			switch {
			case p.err == nil:
				p.err = errNoAnswer
			case ctx.Err() == nil && errors.As(p.err, &e): // by the bound of the attempt
				p.err = e.why
			}
			return &unanswered{fmt.Errorf("the lease could not be renewed: %w", p.err)}
		}
		_ = kit.Pause(ctx, b.life.Closed(), 20*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (b *Backend) proveOne(ctx context.Context, l *lease, most time.Duration) proof {
	ctx, cancel := context.WithTimeout(ctx, min(max(l.ttl/3, time.Second), most))
	defer cancel()
	return b.prove(ctx, []*lease{l})[0]
}

// leaseGone records that the server does not know a lease.
func (b *Backend) leaseGone(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaseEnded(l)
}

// leaseEnded is the end of a lease that the server does not have any more, and of all keys under
// it. B.mu is held.
func (b *Backend) leaseEnded(l *lease) {
	l.gone = true
	b.forgetLease(l)
	for _, rq := range b.requests {
		if rq.lease == l {
			b.vanished(rq)
		}
	}
}

// forgetLease removes a lease from the client's own. b.mu is held.
func (b *Backend) forgetLease(l *lease) {
	delete(b.fixed, l)
	for _, p := range b.pools {
		p.leases = slices.DeleteFunc(p.leases, func(x *lease) bool { return x == l })
	}
}

// revoke ends a lease, and with it whatever may still stand or arrive under it.
func (b *Backend) revoke(ctx context.Context, l *lease) error {
	_, err := b.leases.LeaseRevoke(clientv3.WithRequireLeader(ctx), &pb.LeaseRevokeRequest{ID: l.id}, callOptions...)
	if isGone(err) {
		return nil
	}
	return err
}

// revokeFixed revokes the lease of a fixed request, until that is answered or it must have expired.
func (b *Backend) revokeFixed(l *lease) {
	for end := time.Now().Add(l.ttl); time.Now().Before(end); {
		if b.attempt(b.life.Context(), lastTry, func(ctx context.Context) error { return b.revoke(ctx, l) }) == nil {
			break
		}
		if kit.Pause(b.life.Context(), nil, 100*time.Millisecond) != nil {
			return // Close revokes it
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetLease(l)
}

// revokeAll revokes leases for Close, as far as it can within two seconds.
func (b *Backend) revokeAll(ls []*lease) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	queue := make(chan *lease, len(ls))
	for _, l := range ls {
		queue <- l
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(16, len(ls)) {
		wg.Go(func() {
			for l := range queue {
				for ctx.Err() == nil && b.revokeOnce(ctx, l) != nil {
					_ = kit.Pause(ctx, nil, 20*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
}

func (b *Backend) revokeOnce(ctx context.Context, l *lease) error {
	ctx, cancel := context.WithTimeout(ctx, firstTry)
	defer cancel()
	return b.revoke(ctx, l)
}
