package etcd

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// The keeper is the one goroutine that keeps order in the background. It keeps the leases alive
// under which somebody waits, or a request may soon be put; it ends holds that nobody renewed; it
// gives back leases that are not used, forgets what is over, and checks the watcher's stream.

// startKeeper starts the keeper, unless it runs. b.mu is held.
func (b *Backend) startKeeper() {
	if !b.keeping && !b.life.Over() {
		b.keeping = true
		b.life.Go(b.keep)
	}
}

// keep is the keeper. It ends when there is nothing to do.
func (b *Backend) keep() {
	for {
		b.mu.Lock()
		due, idle, next := b.chores()
		if next == 0 {
			b.keeping = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for ttl, ls := range due {
			b.life.Go(func() { b.keepAlive(ttl, ls) })
		}
		for _, l := range idle {
			b.life.Go(func() {
				_ = b.attempt(b.life.Context(), lastTry, func(ctx context.Context) error { return b.revoke(ctx, l) })
			})
		}
		if kit.Pause(b.life.Context(), nil, next) != nil {
			return
		}
	}
}

// keepAlive proves leases of one TTL on behalf of those who wait.
func (b *Backend) keepAlive(ttl time.Duration, ls []*lease) {
	ctx, cancel := context.WithTimeout(b.life.Context(), max(ttl/3, time.Second))
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

// chores does what takes no call, and returns the leases to prove, by TTL, so that none waits for
// the answers to one that has more time; those to revoke; and when to come again; 0: never. b.mu is
// held.
func (b *Backend) chores() (due map[time.Duration][]*lease, idle []*lease, next time.Duration) {
	now := time.Now()
	due = map[time.Duration][]*lease{}
	next = time.Second
	any := false
	visit := func(l *lease) {
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
			visit(l)
			if l.keys == 0 && now.Sub(l.used) > l.ttl && len(p.turn) == 0 {
				idle = append(idle, l)
			}
		}
	}
	for l := range b.fixed {
		visit(l)
	}
	for _, l := range idle {
		l.gone = true
		b.forgetLease(l)
	}
	b.endNotices(now, any)
	for c, l := range b.tombstoneLeases {
		if now.Sub(l.since) > l.ttl {
			delete(b.tombstoneLeases, c)
		}
		any = true
	}
	b.purgeExpired(now)
	if b.watcher.check(now) {
		next = min(next, progressInterval/4)
	}
	if now.Sub(b.lastPurge) > time.Second {
		b.lastPurge = now
		b.tombstones.Purge(now)
		b.purgeNames(now)
	}
	any = any || b.notices.watchID != 0 || len(b.requests)+len(b.losses)+len(b.names)+b.tombstones.Len() > 0
	if !any {
		return nil, nil, 0
	}
	return due, idle, max(next, 10*time.Millisecond)
}
