package redis

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// lookout is how often the first waiter of a client and name asks the server, should a publication
// have been lost or the client ahead be dead.
const lookout = time.Second

// group are the waiters of this client under one name, in order of arrival.
type group struct {
	waiters []*waiter
	timer   *time.Timer // wakes the first now and then
}

// waiter is an Acquire that waits.
type waiter struct {
	m    *mine
	wake chan struct{} // has a token in it if there is a reason to ask the server
}

// wake makes all of them ask the server. The backend's mu is held.
func (g *group) wake() {
	for _, w := range g.waiters {
		w.poke()
	}
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// join puts an Acquire among those who wait. What was told since it asked, when the round was
// given, went unheard: then it asks again at once.
func (b *Backend) join(m *mine, round uint64) *waiter {
	w := &waiter{m: m, wake: make(chan struct{}, 1)}
	name := m.r.Name
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.names[name]
	if g == nil {
		g = &group{}
		b.names[name] = g
		g.timer = time.AfterFunc(jitter(lookout), func() { b.look(name, g) })
	}
	g.waiters = append(g.waiters, w)
	if m.told || b.round != round {
		w.poke()
	}
	return w
}

// look wakes the first waiter.
func (b *Backend) look(name string, g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.names[name] != g {
		return
	}
	g.waiters[0].poke()
	g.timer.Reset(jitter(lookout))
}

func jitter(d time.Duration) time.Duration { return d - rand.N(d/5) }

// waits takes note that the server lets a waiter wait: for what expires next, if that is not 0; and
// whether it did not know of it before.
func (b *Backend) waits(w *waiter, expiry time.Duration, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.names[w.m.r.Name]
	if g == nil || g.waiters[0] != w {
		return
	}
	if expiry > 0 && expiry < lookout {
		g.timer.Reset(expiry + time.Millisecond + rand.N(20*time.Millisecond))
	}
	if fresh { // it was dropped, or all was: the others too
		for _, other := range g.waiters[1:] {
			other.poke()
		}
	}
}

func (b *Backend) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := w.m.r.Name
	g := b.names[name]
	g.waiters = slices.DeleteFunc(g.waiters, func(x *waiter) bool { return x == w })
	if len(g.waiters) == 0 {
		g.timer.Stop()
		delete(b.names, name)
	}
}

// keeps is how long the server keeps a request that waits and that it does not hear of: as
// lua/acquire.lua has it.
func keeps(ttl time.Duration) time.Duration { return max(ttl, 3*time.Second) }

// sleep returns when it is time to ask the server: there is a reason, or the request has to be kept
// alive.
func (w *waiter) sleep(ctx context.Context, stop <-chan struct{}) error {
	t := time.NewTimer(keeps(w.m.r.TTL) / 3)
	defer t.Stop()
	select {
	case <-w.wake:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-stop:
		return driver.ErrClosed
	}
	return nil
}

// told takes note of a message: the ID of a request that was granted, or, after a "-", of one that
// was ended.
func (b *Backend) told(payload string) {
	text, over := payload, false
	if len(text) > 0 && text[0] == '-' {
		text, over = text[1:], true
	}
	var id driver.ID
	if id.UnmarshalText([]byte(text)) != nil {
		return
	}
	b.mu.Lock()
	m, lost := b.mine[id], b.lost
	if m == nil {
		b.mu.Unlock()
		return
	}
	if g := b.names[m.r.Name]; g != nil {
		for _, w := range g.waiters {
			if w.m == m {
				w.poke()
			}
		}
	}
	m.told = true
	b.mu.Unlock()
	if over && lost != nil {
		lost(id)
	}
}

// wakeAll makes all who wait ask the server: something may have gone unheard.
func (b *Backend) wakeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round++
	for _, g := range b.names {
		g.wake()
	}
}
