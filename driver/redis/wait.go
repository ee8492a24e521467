package redis

import (
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// checkInterval is how often the first waiter of a client and name asks the server: a message may
// have been lost, or the client ahead may be dead.
const checkInterval = time.Second

// waiter is an Acquire that waits.
type waiter = kit.Waiter[*kit.Request]

// keptFor is how long the server keeps a request that waits since it was last asked for, as
// lua/acquire.lua has it.
func keptFor(ttl time.Duration) time.Duration { return max(ttl, 3*time.Second) }

// addWaiter adds an Acquire to those who wait. round is the value that b.round had when it asked
// the server. If all were woken since then, it asks again at once.
func (b *Backend) addWaiter(m *kit.Request, round uint64) *waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, _, _ := b.waiters.Add(m)
	if b.round != round {
		w.Wake()
	}
	return w
}

func (b *Backend) removeWaiter(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters.Remove(w)
}

// waits draws the conclusions from the server's answer that a request waits. Only the first of its
// name draws any.
func (b *Backend) waits(w *waiter, a acquireReply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.waiters.Group(w.Request.Name)
	if g == nil || g.First() != w {
		return
	}
	if a.expiry > 0 && a.expiry < checkInterval {
		g.WakeAfter(kit.AfterExpiry(a.expiry))
	}
	if a.arrived { // the server had dropped it, and perhaps the others too
		for _, other := range g.All()[1:] {
			other.Wake()
		}
	}
}

// wakeAll makes all who wait ask the server: a message may have been lost.
func (b *Backend) wakeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round++
	b.waiters.WakeAll()
}

// receive acts on a message: the ID of a request that was granted, or, after a "-", of one that was
// ended by force.
func (b *Backend) receive(payload string) {
	text, ended := payload, false
	if len(text) > 0 && text[0] == '-' {
		text, ended = text[1:], true
	}
	var id driver.ID
	if id.UnmarshalText([]byte(text)) != nil {
		return
	}
	b.mu.Lock()
	m, is := b.requests.Find(id)
	if is {
		b.waiters.Notify(m)
	}
	lost := b.lost
	b.mu.Unlock()
	if is && ended && lost != nil {
		lost(id)
	}
}
