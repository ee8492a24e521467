package redis

import (
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// checkInterval is how often the first waiter of a client and name asks the server: a message may
// have been lost, or the client of the request ahead may be dead. For more than 1,000 names it is
// longer (see [kit.NewWaiters]).
const checkInterval = time.Second

// ownRequest is a request of this client, with what it knows of its place in the queue.
type ownRequest struct {
	kit.OwnRequest
	held  time.Time // when a call that granted it returned; zero: none did
	place int64     // where it waits, by the server's last answer
	asked time.Time // when that call was sent, or before
	news  grantNews // the last message that it was granted
}

// waiter is an Acquire that waits.
type waiter = kit.Waiter[*ownRequest]

// keptFor is how long the server keeps a waiting request after its client last asked for it.
// lua/queue.lua has the same.
func keptFor(ttl time.Duration) time.Duration { return max(ttl, 3*time.Second) }

// addWaiter adds a waiting Acquire. round is the value that b.round had when it asked the server.
// If all waiters were woken since then, it asks again at once.
func (b *Backend) addWaiter(m *ownRequest, round uint64) *waiter {
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

// waits acts on the server's answer that a request waits, to a call that was sent at asked. Only
// the first waiter of a name acts for the others.
func (b *Backend) waits(w *waiter, a acquireReply, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.Request.place, w.Request.asked = a.place, asked
	g := b.waiters.Group(w.Request.Name)
	if g == nil || g.First() != w {
		return
	}
	if a.expiry > 0 {
		g.WakeWithin(kit.AfterExpiry(a.expiry))
	}
	if a.arrived { // the server had dropped it, and perhaps the others too
		for _, other := range g.All()[1:] {
			other.Wake()
		}
	}
}

// wakeAll makes all waiters ask the server: a message may have been lost.
func (b *Backend) wakeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round++
	b.waiters.WakeAll()
}

// grantOf returns the grant of which a message arrived, if it proves the hold for long enough. The
// server granted the request after it had answered that the request waits in that place. So the
// hold lasts for at least the granted time, counted from when that call was sent, however late the
// message is. It need not be confirmed. A fixed lease is confirmed all the same, since it is not
// renewed, and so is a grant that counts only if replicas have it.
func (b *Backend) grantOf(m *ownRequest) (driver.Grant, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := m.news
	if g.place == 0 || g.place != m.place || m.Fixed || b.o.WaitReplicas > 0 || time.Since(m.asked) > g.ttl/2 {
		return driver.Grant{}, false
	}
	m.Until = m.asked.Add(g.ttl)
	return driver.Grant{Token: g.token, TTL: g.ttl, SentAt: m.asked}, true
}

// grantNews is the message of a grant: the place in which the request had waited, and the hold.
type grantNews struct {
	place int64
	token driver.Token
	ttl   time.Duration
}

// receive acts on a message. For a granted request it has the ID and the grantNews; for one that
// was ended by force, "-" and the ID.
func (b *Backend) receive(payload string) {
	text, ended := strings.CutPrefix(payload, "-")
	var id driver.ID
	var news grantNews
	f := strings.Fields(text)
	switch {
	case len(f) == 0 || id.UnmarshalText([]byte(f[0])) != nil:
		return
	case len(f) == 4:
		var n [3]int64
		for i := range n {
			n[i], _ = strconv.ParseInt(f[1+i], 10, 64)
		}
		news = grantNews{n[0], driver.Token(n[1]), time.Duration(n[2]) * time.Microsecond}
	}
	b.mu.Lock()
	m, is := b.requests.Find(id)
	if is {
		m.news = news
		b.waiters.Notify(m)
	}
	lost := b.lost
	b.mu.Unlock()
	if is && ended && lost != nil {
		lost(id)
	}
}
