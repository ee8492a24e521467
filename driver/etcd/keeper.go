package etcd

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// The keeper is the one background goroutine. It keeps leases alive under which requests wait or
// may soon be put, ends holds that were not renewed, revokes leases that are not used, forgets what
// has ended, and checks the stream of watches.

// startKeeper starts the keeper, unless it runs. b.mu is held.
func (b *Backend) startKeeper() {
	if !b.keeping && !b.life.Over() {
		b.keeping = true
		b.life.Go(b.keep)
	}
}

// keep runs the keeper. It returns when there is nothing left to do.
func (b *Backend) keep() {
	for {
		b.mu.Lock()
		work := b.chores(time.Now())
		if work.next == 0 {
			b.keeping = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for ttl, ls := range work.due {
			b.life.Go(func() { b.leases.keepAlive(ttl, ls) })
		}
		for _, l := range work.idle {
			b.life.Go(func() {
				_ = b.attempt(b.life.Context(), lastTry, func(ctx context.Context) error { return b.leases.revoke(ctx, l) })
			})
		}
		if kit.Pause(b.life.Context(), nil, work.next) != nil {
			return
		}
	}
}

// chores does the work that needs no call, and returns the rest. b.mu is held.
func (b *Backend) chores(now time.Time) work {
	w := b.leases.chores(now)
	b.endNotices(now, w.used)
	b.purgeExpired(now)
	if now.Sub(b.lastPurge) > time.Second {
		b.lastPurge = now
		b.tombstones.Purge(now)
		b.purgeNames(now)
	}
	var notices *watch // the next renewal makes up for a lost notice, but a fixed hold has none
	if !b.leases.haveFixed() {
		notices = b.notices.watch
	}
	if b.watches.check(now, notices) {
		w.next = min(w.next, progressInterval/4)
	}
	if !w.any && b.notices.watch == nil && len(b.requests)+len(b.losses)+len(b.names)+b.tombstones.Len() == 0 {
		return work{}
	}
	w.next = max(w.next, 10*time.Millisecond)
	return w
}

// work is the work of the keeper that needs calls.
type work struct {
	// leases to prove, by TTL, so that none waits for the proof of a lease with more time
	due  map[time.Duration][]*lease
	idle []*lease      // to be revoked
	next time.Duration // until the next chores; 0: the keeper ends
	used bool          // there are leases for requests
	any  bool          // there are leases
}

// chores returns the leases that need work. Idle leases are no longer the client's.
func (ls *leases) chores(now time.Time) work {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w := work{due: map[time.Duration][]*lease{}, next: time.Second}
	visit := func(l *lease) {
		w.used = true
		w.next = min(w.next, l.ttl/40)
		kept := l.waiting > 0 || !l.fixed && now.Sub(l.used) < l.ttl
		if kept && !l.proving && now.Sub(l.since) > l.ttl*2/5 && now.After(l.retry) {
			l.proving = true
			w.due[l.ttl] = append(w.due[l.ttl], l)
		}
	}
	for _, p := range ls.pools {
		for _, l := range p.leases {
			visit(l)
			if l.requests == 0 && now.Sub(l.used) > l.ttl && len(p.turn) == 0 {
				w.idle = append(w.idle, l)
			}
		}
	}
	for l := range ls.fixed {
		visit(l)
	}
	for _, l := range w.idle {
		l.gone = true
		ls.forget(l)
	}
	w.any = w.used || len(ls.tombstones) > 0
	for c, l := range ls.tombstones {
		if now.Sub(l.since) > l.ttl {
			delete(ls.tombstones, c)
		}
	}
	return w
}

// keepAlive proves leases of one TTL on behalf of the requests that wait under them.
func (ls *leases) keepAlive(ttl time.Duration, all []*lease) {
	ctx, cancel := context.WithTimeout(ls.life.Context(), max(ttl/3, time.Second))
	defer cancel()
	ps := ls.prove(ctx, all)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for i, l := range all {
		l.proving = false
		if ps[i].err != nil {
			l.retry = time.Now().Add(l.ttl / 20)
		}
	}
}
