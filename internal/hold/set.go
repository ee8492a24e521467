package hold

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Backend has the methods of a [driver.Backend] that a Set uses.
type Backend interface {
	Acquire(ctx context.Context, r driver.Request) (driver.Grant, error)
	Renew(ctx context.Context, rs []driver.Request) []driver.Renewal
	Release(ctx context.Context, r driver.Request) error
}

// Config configures a Set. All fields but Renewed and Now are required.
type Config struct {
	Backend       Backend
	Name          string // of the backend, for the log
	FixedOutlives bool   // a fixed hold is not released by Close
	Logger        *slog.Logger
	Renewed       func(Renewal) // is called after each renewal; nil: no observer

	// Now is the clock; nil is time.Now. Tests set it to simulate late timers and a suspended
	// machine.
	Now func() time.Time
}

// Set has all holds and waiting requests of one client. It is safe for concurrent use.
type Set struct {
	backend       Backend
	name          string
	fixedOutlives bool
	log           *slog.Logger
	renewed       func(Renewal)
	now           func() time.Time

	ctx   context.Context // of calls in the background; ends with Close
	stop  context.CancelFunc
	calls sync.WaitGroup // releases under way

	mu        sync.Mutex // guards what follows, and all of every Hold and group
	closed    bool
	observed  []*Hold             // ended by Close, until ReportClosed
	requests  map[driver.ID]*Hold // all that are under way or held
	names     map[string]*Hold    // the holds of each name, the newest first, linked by next
	deadlines deadlines
	groups    map[time.Duration]*group // by TTL
	releases  releases
}

// New returns an empty Set. It has to be closed.
func New(c Config) *Set {
	s := &Set{backend: c.Backend, name: c.Name, fixedOutlives: c.FixedOutlives, log: c.Logger, renewed: c.Renewed, now: c.Now}
	if s.now == nil {
		s.now = time.Now
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.requests, s.names = map[driver.ID]*Hold{}, map[string]*Hold{}
	s.groups = map[time.Duration]*group{}
	return s
}

// Close ends all holds as closed, and stops renewals and releases in the background. After it call
// [Set.Wait], then [Set.ReleaseAll], which sends the remaining releases, then [Set.ReportClosed],
// which notifies the observers.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	var ended []*Hold
	for _, h := range s.requests {
		if !h.granted {
			continue
		}
		s.end(h, driver.ErrClosed)
		ended = append(ended, h)
		if !h.req.Fixed || !s.fixedOutlives {
			s.releases.queue = append(s.releases.queue, release{Request: h.req})
		}
	}
	s.deadlines.stop()
	for _, g := range s.groups {
		g.timer.Stop()
	}
	clear(s.groups)
	s.observed = append(s.observed, ended...)
	s.mu.Unlock()
	s.stop()
	for _, h := range ended {
		h.tell()
	}
}

// ReportClosed notifies the observers of the holds that Close ended.
func (s *Set) ReportClosed() {
	s.mu.Lock()
	ended := s.observed
	s.observed = nil
	s.mu.Unlock()
	for _, h := range ended {
		h.tellObserver()
	}
}

// Wait returns when the releases that were under way at Close have returned.
func (s *Set) Wait() { s.calls.Wait() }

// end ends a hold and records why. s.mu is locked; the caller then calls h.tell without it.
func (s *Set) end(h *Hold, why error) {
	h.end = why
	if o := h.observer; o != nil {
		now := s.now()
		o.end = End{Err: why, Held: now.Sub(h.began), At: now}
	}
	s.deadlines.remove(h)
	s.unlink(h)
	delete(s.requests, h.req.ID)
	if h.group != nil {
		h.group.remove(h)
	}
}

// tell calls Ended for all holders of a hold that has ended. s.mu is not locked: the holders do not
// change any more.
func (h *Hold) tell() {
	for _, by := range h.holders {
		by.Ended(h.bareEnd())
	}
}

func (s *Set) link(h *Hold) {
	if h.next = s.names[h.req.Name]; h.next != nil {
		h.next.prev = h
	}
	s.names[h.req.Name] = h
}

func (s *Set) unlink(h *Hold) {
	switch {
	case h.prev != nil:
		h.prev.next = h.next
	case h.next != nil:
		s.names[h.req.Name] = h.next
	default:
		delete(s.names, h.req.Name)
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.prev, h.next = nil, nil
}

// Blocker is a hold that blocks a request of the same Set.
type Blocker struct {
	Label  string
	Held   time.Duration // since its grant
	Advice string        // what to do if the same code has the hold
}

// Blocks returns a hold of this Set that blocks the request, which is not a join, and reports
// whether there is one.
func (s *Set) Blocks(r *driver.Request) (Blocker, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	h := s.against(r, now)
	if h == nil {
		return Blocker{}, false
	}
	return Blocker{h.req.Label, now.Sub(h.began), h.advice(r)}, true
}

// advice says what code should do that has h and requests r.
func (h *Hold) advice(r *driver.Request) string {
	if !h.req.Mode.Covers(r.Mode) { // with the context it would be an upgrade
		return "release the read lease first"
	}
	return "pass lease.Context"
}

// against returns a hold, granted at that time or earlier, that blocks the request, which is not a
// join; nil if there is none among the newest holds of the name. It checks a limited number, which
// keeps calls cheap for a client with very many readers or permits of one name, and may miss a
// warning there. s.mu is locked.
func (s *Set) against(r *driver.Request, since time.Time) *Hold {
	const most = 128
	limit, owners := r.Limit, 0
	var reader *Hold
	for h, seen := s.names[r.Name], 0; h != nil && seen < most; h, seen = h.next, seen+1 {
		if h.began.After(since) {
			continue
		}
		if h.req.Mode == driver.Exclusive {
			return h
		}
		// a blocked reader is behind a writer, which waits for the readers before it
		if r.Mode == driver.Exclusive || r.Limit == 0 && h.req.Limit == 0 {
			if reader == nil {
				reader = h
			}
			continue
		}
		if h.req.Limit > 0 && !h.req.Join() {
			limit = min(limit, h.req.Limit)
			if owners++; owners >= limit {
				return h
			}
		}
	}
	return reader
}
