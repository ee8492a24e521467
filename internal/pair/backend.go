package pair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Side is one of the two backends.
type Side struct {
	Backend  driver.Backend
	Caps     driver.Capabilities
	Identity string // it orders two backends of one scheme
	Family   string // two backends of one family may be one service under two URLs
	// as that of [driver.Notifier]; nil: the backend's own, if it is a Notifier
	Notify func(lost func(driver.ID))
}

// Backend is the pair. It implements [driver.Backend], [driver.Capable] and [driver.Notifier]; what
// New returns implements the other interfaces of package driver as far as both sides do.
type Backend struct {
	sides [2]Side // in the order of locking
	old   int     // the index of the old one
	raise bool    // both sides can be raised
	caps  driver.Capabilities

	apart atomic.Bool // the two were seen to be two

	mu       sync.Mutex
	requests map[driver.ID]*record   // by the ID of the caller
	renamed  map[driver.ID]driver.ID // the caller's ID by that of a later attempt at the second
	parked   map[driver.ID]*record   // those that the pair renews
	timer    *time.Timer             // renews them; nil: it does not run
	next     time.Time               // when it does
	lost     func(driver.ID)
	closed   bool
	calls    sync.WaitGroup // renewals of parked requests
	ctx      context.Context
	cancel   context.CancelFunc
}

// New returns the pair of a new and an old backend, which its Close closes. It fails with
// [driver.ErrInvalid] if nothing orders the two.
func New(new, old Side) (driver.Backend, error) {
	p := &Backend{
		sides: [2]Side{new, old}, old: 1, requests: map[driver.ID]*record{}, renamed: map[driver.ID]driver.ID{}, parked: map[driver.ID]*record{},
		lost: func(driver.ID) {},
	}
	switch before(new, old) {
	case 0:
		return nil, fmt.Errorf("%w: the new and the old backend are both %s, and nothing tells them apart; give each an identity of its own (identity=… in its URL)",
			driver.ErrInvalid, new.Caps.Backend)
	case 1:
		p.sides[0], p.sides[1], p.old = old, new, 0
	}
	p.raise = new.Caps.Raises && old.Caps.Raises
	p.caps = both(p.sides[0].Caps, p.sides[1].Caps)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	breaks, lists := true, true
	for _, s := range p.sides {
		_, b := s.Backend.(driver.Breaker)
		_, l := s.Backend.(driver.Lister)
		breaks, lists = breaks && b && s.Caps.Inspect, lists && l
	}
	switch {
	case breaks && lists:
		return struct {
			*Backend
			breaker
			lister
		}{p, breaker{p}, lister{p}}, nil
	case breaks:
		return struct {
			*Backend
			breaker
		}{p, breaker{p}}, nil
	case lists:
		return struct {
			*Backend
			lister
		}{p, lister{p}}, nil
	}
	return p, nil
}

// before compares the places of two sides in the order of locking.
func before(a, b Side) int {
	rank := func(s Side) int {
		switch {
		case s.Caps.Format != "":
			return 2
		case !s.Caps.Queue:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Caps.Backend, b.Caps.Backend),
		cmp.Compare(a.Caps.Format, b.Caps.Format), cmp.Compare(a.Identity, b.Identity))
}

// both returns what the pair of two backends can do, of which a is the first.
func both(a, b driver.Capabilities) driver.Capabilities {
	c := driver.Capabilities{
		Backend: a.Backend + " and " + b.Backend,
		Format:  cmp.Or(a.Format, b.Format),
		Queue:   a.Queue, // only those that it has granted are sent to the other
		Fencing: a.Fencing || b.Fencing,
		Shared:  a.Shared && b.Shared, Semaphores: a.Semaphores && b.Semaphores,
		Joins: a.Joins && b.Joins, Inspect: a.Inspect && b.Inspect, Durable: a.Durable && b.Durable,
		FailoverSafe:    a.FailoverSafe && b.FailoverSafe,
		ServerEndsFixed: a.ServerEndsFixed && b.ServerEndsFixed, FixedOutlives: a.FixedOutlives && b.FixedOutlives,
		MinTTL: max(a.MinTTL, b.MinTTL), MaxTTL: least(a.MaxTTL, b.MaxTTL),
	}
	if a.Identity != "" && b.Identity != "" {
		c.Identity = fmt.Sprintf("%q and %q", a.Identity, b.Identity)
	}
	if fixed := least(cmp.Or(a.MaxFixed, a.MaxTTL), cmp.Or(b.MaxFixed, b.MaxTTL)); fixed > c.MaxTTL && c.MaxTTL > 0 {
		c.MaxFixed = fixed
	}
	return c
}

// least returns the smaller bound; 0 is no bound.
func least(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Capabilities implements [driver.Capable].
func (p *Backend) Capabilities() driver.Capabilities {
	if p == nil {
		return driver.Capabilities{}
	}
	return p.caps
}

// Sides returns the two backends, the new one first.
func (p *Backend) Sides() (new, old driver.Backend) {
	return p.sides[1-p.old].Backend, p.sides[p.old].Backend
}

// Is reports whether the backend is a pair.
func Is(b driver.Backend) bool {
	_, ok := b.(interface {
		Sides() (new, old driver.Backend)
	})
	return ok
}

// Notify implements [driver.Notifier].
func (p *Backend) Notify(lost func(driver.ID)) {
	p.mu.Lock()
	p.lost = lost
	p.mu.Unlock()
	for i, s := range p.sides {
		notify := s.Notify
		if n, ok := s.Backend.(driver.Notifier); ok && notify == nil {
			notify = n.Notify
		}
		if notify != nil {
			notify(func(id driver.ID) { p.lostAt(i, id) })
		}
	}
}

// lostAt is called when a side reports a request as lost.
func (p *Backend) lostAt(side int, id driver.ID) {
	p.mu.Lock()
	if of, ok := p.renamed[id]; ok && side == 1 {
		id = of
	}
	q, lost := p.requests[id], p.lost
	if q != nil {
		q.parts[side].lost = true
		if q.stopWait != nil {
			q.stopWait(errLostAhead)
		}
	}
	p.mu.Unlock()
	if q != nil {
		lost(id)
	}
}

// Explain implements [driver.Explainer].
func (p *Backend) Explain(id driver.ID) error {
	p.mu.Lock()
	q := p.requests[id]
	var parts [2]part
	if q != nil {
		parts = q.parts
	}
	p.mu.Unlock()
	if q == nil {
		return nil
	}
	for i, s := range p.sides {
		if e, ok := s.Backend.(driver.Explainer); ok && parts[i].lost {
			if why := e.Explain(parts[i].r.ID); why != nil {
				return why
			}
		}
	}
	return nil
}

// closeTimeout is how long Close releases requests.
const closeTimeout = 2 * time.Second

// Close implements [driver.Backend]. A side may leave a fixed request that it has granted, so those
// that the pair does not leave are released first.
func (p *Backend) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	var fixed []driver.Request
	for _, q := range p.requests {
		if q.r.Fixed && !(p.caps.FixedOutlives && q.parts[0].granted && q.parts[1].granted) {
			fixed = append(fixed, q.r)
			if q.stopWait != nil {
				q.stopWait(driver.ErrClosed)
			}
		}
	}
	p.mu.Unlock()
	if !first {
		return nil
	}
	p.cancel()
	p.calls.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var released sync.WaitGroup
	for _, r := range fixed {
		released.Go(func() { p.Release(ctx, r) })
	}
	released.Wait()
	var errs [2]error
	p.each(func(i int, b driver.Backend) { errs[i] = b.Close() })
	return errors.Join(errs[:]...)
}

// each calls f for both sides at once.
func (p *Backend) each(f func(side int, b driver.Backend)) {
	var other sync.WaitGroup
	other.Go(func() { f(1, p.sides[1].Backend) })
	f(0, p.sides[0].Backend)
	other.Wait()
}

// clientMark is the end of the ID of every client of a pair.
var clientMark = []byte("also")

// ClientID returns an ID for a client of a pair. It shows, on each side, that the requests of this
// client stand on the other side too.
func ClientID() driver.ID {
	id := driver.NewID()
	copy(id[len(id)-len(clientMark):], clientMark)
	return id
}

// IsClient reports whether the ID is of a client of a pair.
func IsClient(id driver.ID) bool { return slices.Equal(id[len(id)-len(clientMark):], clientMark) }
