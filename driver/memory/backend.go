package memory

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Backend is a client of a [Space]. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker], [driver.Notifier] and [driver.Lister], whose contracts it keeps. Nothing but
// Acquire ever waits, so nothing else minds its context. It is made by [New] or a URL; the
// zero value is of no use.
type Backend struct {
	space  *Space
	prefix string
	forget func() // of a named space: this client does not need it any more

	// guarded by space.mu
	lost   func(driver.ID)
	closed bool
}

// Capabilities returns what the driver can do: everything but outlive the process.
func (b *Backend) Capabilities() driver.Capabilities {
	return driver.Capabilities{
		Backend:         "memory",
		Identity:        fmt.Sprintf("%d/%s", b.space.serial, b.prefix),
		Queue:           true,
		Fencing:         true,
		Shared:          true,
		Semaphores:      true,
		Joins:           true,
		Inspect:         true,
		ServerEndsFixed: true,
		FixedOutlives:   true,
		MinTTL:          minTTL,
	}
}

const minTTL = time.Millisecond

// Notify implements [driver.Notifier]. An expiry is noticed when its name is used next, or at once
// if somebody waits.
func (b *Backend) Notify(lost func(driver.ID)) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	b.lost = lost
}

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if r.TTL < minTTL {
		return driver.Grant{}, fmt.Errorf("%w TTL of %s; the least is %s", driver.ErrInvalid, r.TTL, minTTL)
	}
	grant, w, err := b.enter(r)
	if w == nil {
		return grant, err
	}
	select {
	case <-w.done:
		return w.grant, w.err
	case <-ctx.Done():
		b.Release(ctx, r) // waiting or granted by now, it goes, and whoever follows is granted
		return driver.Grant{}, driver.Waited(ctx)
	}
}

// enter adds or resumes a request. It returns its grant, or why it has none, or where the answer
// will be.
func (b *Backend) enter(r driver.Request) (driver.Grant, *wait, error) {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return driver.Grant{}, nil, driver.ErrClosed
	}
	r.Name = b.prefix + r.Name
	now := time.Now()
	q := s.touch(r.Name, now)
	if q == nil {
		q = &queue{name: r.Name}
	}
	e := s.requests[r.ID]
	switch {
	case e == nil && s.tombs.has(r.ID, now):
		return driver.Grant{}, nil, driver.ErrLost
	case e == nil:
		admitted, err := q.Admit(r)
		if err != nil {
			return driver.Grant{}, nil, err
		}
		e = &request{Entry: driver.Entry{Request: admitted}, client: b, arrived: now}
		s.add(q, e, now)
	case e.Name != r.Name:
		return driver.Grant{}, nil, fmt.Errorf("%w request: its ID stands under another name", driver.ErrInvalid)
	case e.Broken:
		return driver.Grant{}, nil, driver.ErrLost
	case e.granted():
		q.keep(e, r.TTL, now)
		s.watch(q, now)
	}
	switch {
	case e.granted():
		return driver.Grant{Token: e.Token, TTL: e.TTL, SentAt: now}, nil, nil
	case !r.Wait:
		s.remove(q, e, driver.ErrLost)
		s.settle(q, now)
		return driver.Grant{}, nil, driver.ErrHeld
	case e.wait == nil:
		e.wait = &wait{done: make(chan struct{})}
	}
	return driver.Grant{}, e.wait, nil
}

// Renew implements [driver.Backend]. A request that still waits is [driver.ErrNotHeld].
func (b *Backend) Renew(_ context.Context, rs []driver.Request) []driver.Renewal {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	res := make([]driver.Renewal, len(rs))
	for i := range rs {
		if b.closed {
			res[i].Err = driver.ErrClosed
			continue
		}
		q, e := b.find(&rs[i], now)
		switch {
		case e == nil || e.Broken:
			res[i].Err = driver.ErrLost
		case !e.granted():
			res[i].Err = driver.ErrNotHeld
		default:
			q.keep(e, rs[i].TTL, now)
			s.watch(q, now)
			res[i] = driver.Renewal{TTL: e.TTL, SentAt: now}
		}
	}
	return res
}

// Release implements [driver.Backend].
func (b *Backend) Release(_ context.Context, r driver.Request) error {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return driver.ErrClosed
	}
	now := time.Now()
	if r.Uncertain {
		s.tombs.add(r.ID, r.TTL, now)
	}
	q, e := b.find(&r, now)
	if e == nil {
		return driver.ErrLost
	}
	s.remove(q, e, driver.ErrLost)
	s.settle(q, now)
	return nil
}

// find returns the request as it stands, and where; nil if it does not.
func (b *Backend) find(r *driver.Request, now time.Time) (*queue, *request) {
	name := b.prefix + r.Name
	q := b.space.touch(name, now)
	if e := b.space.requests[r.ID]; e != nil && e.Name == name {
		return q, e
	}
	return nil, nil
}

// Break implements [driver.Breaker].
func (b *Backend) Break(_ context.Context, name string, t driver.Token, force bool) error {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return driver.ErrClosed
	}
	now := time.Now()
	q := s.touch(b.prefix+name, now)
	if q == nil {
		return driver.ErrNotHeld
	}
	err := driver.ErrNotHeld
	for _, e := range q.Holders() {
		if e.Token != t {
			continue
		}
		err = nil
		if e.Broken = true; force {
			s.lose(q, s.requests[e.ID], now)
		}
	}
	s.settle(q, now)
	return err
}

// Inspect implements [driver.Backend]. What waits has its whole TTL left, always.
func (b *Backend) Inspect(_ context.Context, name string) (driver.Queue, error) {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return driver.Queue{}, driver.ErrClosed
	}
	now := time.Now()
	q := s.touch(b.prefix+name, now)
	if q == nil {
		return driver.Queue{}, nil
	}
	show := func(es []*driver.Entry) []*driver.Entry {
		shown := make([]*driver.Entry, len(es))
		for i, e := range es {
			r, c := s.requests[e.ID], *e
			c.Name, c.Age, c.Left = name, now.Sub(r.arrived), e.TTL
			if r.granted() {
				c.Left = r.expires.Sub(now)
			}
			shown[i] = &c
		}
		return shown
	}
	return driver.Queue{Joins: show(q.Joins), Arrivals: show(q.Arrivals)}, nil
}

// List implements [driver.Lister]: the names that begin with the client's prefix, without it.
func (b *Backend) List(context.Context) ([]string, error) {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return nil, driver.ErrClosed
	}
	now := time.Now()
	var names []string
	for name := range s.queues {
		if own, ok := strings.CutPrefix(name, b.prefix); ok && s.touch(name, now) != nil {
			names = append(names, own)
		}
	}
	return names, nil
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	if b.leave() {
		b.forget()
	}
	return nil
}

// leave removes all that the client has in any queue but fixed holds, and reports whether this was
// the first call.
func (b *Backend) leave() bool {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return false
	}
	b.closed, b.lost = true, nil
	now, changed := time.Now(), map[*queue]bool{}
	for _, r := range s.requests {
		if r.client == b && !(r.Fixed && r.granted()) {
			q := s.queues[r.Name]
			s.remove(q, r, driver.ErrClosed)
			changed[q] = true
		}
	}
	for q := range changed { // only now, lest it grants to what is removed next
		s.settle(q, now)
	}
	return true
}
