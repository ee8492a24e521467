package memory

import (
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Options are the options of [New]. The zero value makes a client of a space of its own.
type Options struct {
	// Space has the queues, which the client shares with every other client of the same space. Nil
	// is a new space, which no other client can use.
	Space *Space

	// Prefix is put before every name. Clients see each other's locks where prefix and name
	// together are the same.
	Prefix string
}

// Backend is a client of a [Space]. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier], [driver.Lister] and [driver.Raiser], whose contracts it
// keeps. Nothing but Acquire ever waits, so all other methods ignore their context. It is made by
// [New] or a URL; the zero value is not usable.
type Backend struct {
	space   *Space
	prefix  string
	onClose func() // nil: nothing

	// guarded by space.mu
	lost   func(driver.ID)
	closed bool
}

// New returns a new client, which has to be closed. It returns no error today.
func New(o Options) (*Backend, error) {
	s := o.Space
	if s == nil {
		s = new(Space)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	return &Backend{space: s, prefix: o.Prefix}, nil
}

const minTTL = time.Millisecond

// Capabilities implements [driver.Capable]: the driver supports everything, but holds do not
// outlive the process. Those of the zero Backend are zero.
func (b *Backend) Capabilities() driver.Capabilities {
	if b.space == nil {
		return driver.Capabilities{}
	}
	return driver.Capabilities{
		Backend:         "memory",
		Identity:        fmt.Sprintf("%d/%s", b.space.serial, b.prefix),
		Queue:           true,
		Fencing:         true,
		Raises:          true,
		Shared:          true,
		Semaphores:      true,
		Joins:           true,
		Inspect:         true,
		FailoverSafe:    true,
		ServerEndsFixed: true,
		FixedOutlives:   true,
		MinTTL:          minTTL,
	}
}

// begin returns the space, locked. It returns nil if the backend is closed, or is the zero value.
func (b *Backend) begin() *Space {
	if b.space == nil {
		return nil
	}
	b.space.mu.Lock()
	if b.closed {
		b.space.mu.Unlock()
		return nil
	}
	return b.space
}

// Notify implements [driver.Notifier]. An expiry is detected when its name is next used, or at once
// if a request waits there.
func (b *Backend) Notify(lost func(driver.ID)) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	b.lost = lost
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	if b.space != nil && b.removeAll() && b.onClose != nil {
		b.onClose()
	}
	return nil
}

// removeAll removes the client's requests from all queues, except fixed holds whose Acquire
// returned the grant. It reports whether this was the first call.
func (b *Backend) removeAll() bool {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return false
	}
	b.closed, b.lost = true, nil
	now, changed := time.Now(), map[*queue]bool{}
	for _, r := range s.requests {
		if r.client == b && !(r.Fixed && r.granted() && !r.left) {
			q := s.queues[r.Name]
			s.remove(q, r, driver.ErrClosed)
			changed[q] = true
		}
	}
	for q := range changed { // only now, so that no request is granted that is removed next
		s.evaluate(q, now)
	}
	return true
}
