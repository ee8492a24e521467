package mysql

import (
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// attach adds an Acquire to those that wait.
func (b *Backend) attach(m *request) *kit.Waiter[*request] {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, g, first := b.waiters.Add(m)
	if first {
		b.pollSoon(g)
	}
	if !b.polling {
		b.polling = b.life.Go(b.poll)
	}
	return w
}

// detach removes an Acquire from those that wait.
func (b *Backend) detach(w *kit.Waiter[*request]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters.Remove(w)
}

// mustWait records what the server says to a request that waits.
func (b *Backend) mustWait(w *kit.Waiter[*request], a verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := w.Request
	m.place = a.place
	g := b.waiters.Group(m.Name)
	if g != nil {
		b.heardOf(g, m, a.ahead)
	}
	if g == nil || g.First() != w {
		return
	}
	g.State.advance(a.head)
	if a.expiry > 0 {
		g.WakeAfter(kit.AfterExpiry(a.expiry))
	}
	if a.arrived { // the server had dropped it, and perhaps the others too
		for _, other := range g.All()[1:] {
			other.Wake()
		}
	}
}

// advance records the head of a queue, as the server says it. b.mu is held.
func (b *Backend) advance(name, head string) {
	g := b.waiters.Group(name)
	n, err := strconv.ParseInt(head, 10, 64)
	if g == nil || err != nil {
		return
	}
	g.State.advance(n)
	if place := g.First().Request.place; place > 0 && place < n {
		g.First().Wake() // it was granted, and did not learn of it
	}
}

// receive records whom a call granted. Requests of the client that made the call hold from then on;
// others have to confirm it.
func (b *Backend) receive(c *call, grants string) {
	if grants == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	parseGrants(grants, func(id driver.ID, token driver.Token, holds bool) {
		m, is := b.requests.Find(id)
		if !is {
			return
		}
		if holds {
			b.holds(m, c.sent)
			m.grant = &driver.Grant{Token: token, TTL: m.TTL, SentAt: c.sent}
		}
		b.waiters.Notify(m)
	})
}

// parseGrants reads whom a call granted: id:token:holds, for each. holds is 1 if the request is of
// the client that made the call.
func parseGrants(grants string, visit func(id driver.ID, token driver.Token, holds bool)) {
	for item := range strings.SplitSeq(strings.TrimSuffix(grants, ","), ",") {
		f := strings.Split(item, ":")
		var id driver.ID
		if len(f) != 3 || id.UnmarshalText([]byte(f[0])) != nil {
			continue
		}
		token, _ := strconv.ParseUint(f[1], 10, 64)
		visit(id, driver.Token(token), f[2] == "1")
	}
}

// wakeName makes all that wait under a name ask the server.
func (b *Backend) wakeName(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters.WakeName(name)
}

// wakeFirst makes the first waiter of each name ask the server.
func (b *Backend) wakeFirst() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters.WakeFirst()
}
