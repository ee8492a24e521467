package mysql

import (
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// request is a request of this client that may stand in a queue. The backend's mu guards it.
type request struct {
	kit.Request
	place int64         // in the queue, while it waits; 0: not known
	ahead driver.ID     // who stands there before it, if that is another client's; zero: not known
	ended bool          // by force, and that was reported
	grant *driver.Grant // the reply to another call granted it, or a poll found it granted
}

// holds records a proof that the request holds, by a call that was sent at that time. b.mu is held.
func (b *Backend) holds(m *request, sentAt time.Time) {
	b.watchEnds()
	if !m.Granted() && m.Mode == driver.Exclusive && b.requests.Has(m) {
		b.exclusive[m.Name]++
	}
	m.Holds(sentAt)
}

// remove records that the request stands nowhere any more. b.mu is held.
func (b *Backend) remove(m *request) {
	b.ringBell(m.ID)
	if !b.requests.Remove(m) || !m.Granted() || m.Mode == driver.Shared {
		return
	}
	if b.exclusive[m.Name]--; b.exclusive[m.Name] > 0 {
		return
	}
	delete(b.exclusive, m.Name)
	if g := b.waiters.Group(m.Name); g != nil {
		b.pollSoon(g) // it may be the turn of another client, and then one of ours
	}
}
