package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// leaseMax is how many keys share a lease. A put costs the server a little for each key of its
// lease.
const leaseMax = 1000

// lease is a lease of this client. The backend's mu guards what changes.
type lease struct {
	id    int64
	ttl   time.Duration // as the server granted it
	fixed bool          // of one request, and kept alive only while that waits

	since   time.Time // before the last proof that it exists was asked for
	used    time.Time // when a request was last given it
	keys    int       // requests that have it
	waiting int       // those of them that wait
	gone    bool      // the server does not have it any more
	proving bool      // by the keeper
	retry   time.Time // when the keeper tries again
	strange map[string]bool
}

// fresh reports whether at least half of the lease's time is left for sure.
func (l *lease) fresh() bool { return time.Since(l.since) < l.ttl/2 }

// class is a TTL in whole seconds, as the server counts.
func class(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// pool are the leases of one class. Its turn is held by whoever grants or proves one of them.
type pool struct {
	leases []*lease
	turn   chan struct{}
}

// use gives a request a lease of which at least half of the time is left.
func (b *Backend) use(ctx context.Context, m *mine) error {
	if m.r.Fixed {
		l, err := b.grant(ctx, m.r.TTL)
		if err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		l.fixed = true
		b.fixed[l] = true
		m.take(l)
		return nil
	}
	c := class(m.r.TTL)
	b.mu.Lock()
	p := b.pools[c]
	if p == nil {
		p = &pool{turn: make(chan struct{}, 1)}
		b.pools[c] = p
	}
	l := p.pick()
	if l != nil && l.fresh() {
		m.take(l)
		b.mu.Unlock()
		return nil
	}
	b.mu.Unlock()
	if err := b.turn(ctx, p.turn); err != nil {
		return err
	}
	defer func() { <-p.turn }()
	for {
		b.mu.Lock()
		l := p.pick()
		if l != nil && l.fresh() {
			m.take(l)
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
		l, err := b.grant(ctx, m.r.TTL)
		if err != nil {
			return err
		}
		b.mu.Lock()
		p.leases = append(p.leases, l)
		b.mu.Unlock()
	}
}

// pick returns a lease with room, or nil.
func (p *pool) pick() *lease {
	for _, l := range p.leases {
		if !l.gone && l.keys < leaseMax {
			return l
		}
	}
	return nil
}

// take gives the request the lease.
func (m *mine) take(l *lease) {
	m.lease = l
	l.keys++
	l.used = time.Now()
}

// leave takes it from the request. b.mu is held.
func (m *mine) leave() {
	if m.lease != nil {
		m.waits(false)
		m.lease.keys--
		m.lease = nil
	}
}

// waits takes note of whether the request waits in the queue. b.mu is held.
func (m *mine) waits(yes bool) {
	if m.waiting != yes {
		m.waiting = yes
		if m.lease != nil {
			m.lease.waiting += map[bool]int{true: 1, false: -1}[yes]
		}
	}
}

// grant asks the server for a lease. One of which the answer is lost expires by itself.
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
	b.keeping()
	b.mu.Unlock()
	return l, nil
}

// refresh proves a lease until at least half of its time is left.
func (b *Backend) refresh(ctx context.Context, l *lease) error {
	over := time.Now().Add(patience)
	for {
		p := b.proveOne(ctx, l, max(time.Until(over), time.Second))
		switch {
		case p.err == nil && time.Since(p.since) < l.ttl/2:
			return nil
		case errors.Is(p.err, driver.ErrLost), b.ctx.Err() != nil:
			return p.err
		case time.Now().After(over):
			var e *ended
			switch {
			case p.err == nil:
				p.err = errNoAnswer
			case ctx.Err() == nil && errors.As(p.err, &e): // by the bound of the attempt
				p.err = e.why
			}
			return &unanswered{fmt.Errorf("the lease could not be renewed: %w", p.err)}
		}
		if b.rest(ctx, 20*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (b *Backend) proveOne(ctx context.Context, l *lease, most time.Duration) proof {
	ctx, cancel := context.WithTimeout(ctx, min(max(l.ttl/3, time.Second), most))
	defer cancel()
	return b.prove(ctx, []*lease{l})[0]
}

// grave returns an unkept lease for a tombstone that has to stand for the TTL.
func (b *Backend) grave(ctx context.Context, ttl time.Duration) (id int64, until time.Time, err error) {
	c := class(ttl)
	b.mu.Lock()
	g := b.graves[c]
	b.mu.Unlock()
	if g == nil || time.Since(g.since) > g.ttl-ttl-time.Second {
		if g, err = b.grant(ctx, 2*ttl+2*time.Second); err != nil {
			return 0, time.Time{}, err
		}
		b.mu.Lock()
		b.graves[c] = g
		b.mu.Unlock()
	}
	return g.id, g.since.Add(g.ttl), nil
}

// dead takes note that the server does not have a lease any more. b.mu is held.
func (b *Backend) dead(l *lease) {
	l.gone = true
	b.dropLease(l)
	for _, m := range b.mine {
		if m.lease == l {
			b.vanished(m)
		}
	}
}

// dropLease forgets a lease. b.mu is held.
func (b *Backend) dropLease(l *lease) {
	delete(b.fixed, l)
	for _, p := range b.pools {
		p.leases = slices.DeleteFunc(p.leases, func(x *lease) bool { return x == l })
	}
}

// revoke gives a lease back, and with it whatever may still stand or arrive under it.
func (b *Backend) revoke(ctx context.Context, l *lease) error {
	_, err := b.leases.LeaseRevoke(clientv3.WithRequireLeader(ctx), &pb.LeaseRevokeRequest{ID: l.id}, callOptions...)
	if isGone(err) {
		return nil
	}
	return err
}

// keeping starts the keeper, unless it runs. b.mu is held.
func (b *Backend) keeping() {
	if !b.keeper && b.ctx.Err() == nil {
		b.keeper = true
		b.spawn(b.keep)
	}
}

// keep is the one goroutine that looks after all leases: it keeps alive those under which somebody
// waits, or a request may soon be put; drops the requests that nobody renewed; and gives back what
// is not used. It ends when there is no lease.
func (b *Backend) keep() {
	for {
		b.mu.Lock()
		due, idle, next := b.chores()
		if next == 0 {
			b.keeper = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for ttl, ls := range due {
			b.spawn(func() { b.prolong(ttl, ls) })
		}
		for _, l := range idle {
			b.spawn(func() { _ = b.attempt(b.ctx, lastTry, func(ctx context.Context) error { return b.revoke(ctx, l) }) })
		}
		if pause(b.ctx, next) != nil {
			return
		}
	}
}

// prolong proves leases of one TTL on behalf of those who wait.
func (b *Backend) prolong(ttl time.Duration, ls []*lease) {
	ctx, cancel := context.WithTimeout(b.ctx, max(ttl/3, time.Second))
	defer cancel()
	ps := b.prove(ctx, ls)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, l := range ls {
		l.proving = false
		if ps[i].err != nil {
			l.retry = time.Now().Add(l.ttl / 20)
		}
	}
}

// chores returns the leases to prove, by TTL, so that none waits for the answers to one that has
// more time; those to give back; and when to come again; 0: never. b.mu is held.
func (b *Backend) chores() (due map[time.Duration][]*lease, idle []*lease, next time.Duration) {
	now := time.Now()
	due = map[time.Duration][]*lease{}
	next = time.Second
	any := false
	look := func(l *lease) {
		any = true
		next = min(next, l.ttl/40)
		kept := l.waiting > 0 || !l.fixed && now.Sub(l.used) < l.ttl
		if kept && !l.proving && now.Sub(l.since) > l.ttl*2/5 && now.After(l.retry) {
			l.proving = true
			due[l.ttl] = append(due[l.ttl], l)
		}
	}
	for _, p := range b.pools {
		for _, l := range p.leases {
			look(l)
			if l.keys == 0 && now.Sub(l.used) > l.ttl && len(p.turn) == 0 {
				idle = append(idle, l)
			}
		}
	}
	for l := range b.fixed {
		look(l)
	}
	for _, l := range idle {
		l.gone = true
		b.dropLease(l)
	}
	for c, g := range b.graves {
		if now.Sub(g.since) > g.ttl {
			delete(b.graves, c)
		}
		any = true
	}
	b.expire(now)
	if b.hub.check(now); b.hub.out != nil {
		next = min(next, listen/4)
	}
	if now.Sub(b.tidied) > time.Second {
		b.tidied = now
		b.tidy(now)
	}
	any = any || len(b.mine)+len(b.names)+len(b.buried) > 0
	if !any {
		return nil, nil, 0
	}
	return due, idle, max(next, 10*time.Millisecond)
}
