package adapt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Options configure [New]. Backend and Format are required.
type Options struct {
	Backend string // the scheme, for errors and metrics
	Format  string // see [driver.Capabilities.Format]

	// Outlives is set if a hold stays for its time when its process dies and when its connection
	// ends. Without it the service must end the hold with the process or the connection.
	Outlives bool
	Durable  bool // holds survive a restart of the service
	// FailoverSafe is set if a server that takes over knows all grants: see
	// [driver.Capabilities.FailoverSafe].
	FailoverSafe bool

	MinTTL, MaxTTL time.Duration // as in [driver.Capabilities]

	// RetryDelay is how long a waiter pauses before it tries again, give or take half of it. It
	// tries sooner if the holder is known to expire before, or a [Waker] wakes it. 0: 50ms without
	// a Waker, else 1s.
	RetryDelay time.Duration

	Close func() error // called by Close after everything was released; may be nil
}

// Backend is a client of the lock behind [Calls]. It implements [driver.Backend], [driver.Capable]
// and [driver.Notifier], whose contracts it keeps. New makes one; package dlock refuses the zero
// Backend.
type Backend struct {
	calls  Calls
	fencer Fencer // nil: there are no tokens
	waker  Waker  // nil: there is none
	sharer Sharer // nil: a lock has one holder
	o      Options
	caps   driver.Capabilities
	life   *kit.Life

	mu         sync.Mutex // guards what follows
	requests   kit.Requests[*ownRequest]
	waiters    kit.Waiters[*ownRequest, line]
	tombstones kit.Tombstones // requests that were lost, or released with Uncertain set
}

// ownRequest is a request of this client. The backend's mu guards it.
type ownRequest struct {
	kit.OwnRequest
	token    driver.Token  // of its hold
	trying   chan struct{} // closed when the Try under way has returned; nil: none is
	late     bool          // it was released while a Try was under way
	lost     bool          // an Extend found that it does not hold
	released bool          // its release was asked for; it stands only for what joined it

	joined map[*ownRequest]bool // fixed requests that joined it and were granted
	hold   *ownRequest          // for a join without a Sharer: the request that began the hold
}

// New returns a backend over the calls. It makes no call yet. Its errors match [driver.ErrInvalid].
func New(c Calls, o Options) (*Backend, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w options: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	waker, _ := c.(Waker)
	sharer, shares := c.(Sharer)
	fencer, fences := c.(Fencer)
	if o.RetryDelay == 0 {
		if o.RetryDelay = 50 * time.Millisecond; waker != nil {
			o.RetryDelay = time.Second
		}
	}
	switch {
	case c == nil:
		return nil, bad("the calls are nil")
	case o.Backend == "" || o.Format == "":
		return nil, bad("Backend and Format must be set, to a name of the service and one of the kind of lock")
	case o.RetryDelay < time.Millisecond:
		return nil, bad("a RetryDelay of %s; the least is 1ms", o.RetryDelay)
	case o.MinTTL < 0 || o.MaxTTL < 0 || o.MaxTTL > 0 && o.MaxTTL < o.MinTTL:
		return nil, bad("a MinTTL of %s and a MaxTTL of %s; neither may be negative, and MaxTTL must be 0, for no limit, or at least MinTTL",
			o.MinTTL, o.MaxTTL)
	}
	b := &Backend{
		calls: c, fencer: fencer, waker: waker, sharer: sharer, o: o, life: kit.NewLife(),
		requests: kit.NewRequests(func(r kit.OwnRequest) *ownRequest { return &ownRequest{OwnRequest: r} }),
	}
	b.waiters = kit.NewWaiters[*ownRequest, line](&b.mu, 0)
	_, inspects := c.(Inspector)
	b.caps = driver.Capabilities{
		Backend: o.Backend, Format: o.Format,
		Fencing: fences, Shared: shares, Joins: shares, Inspect: inspects || shares,
		Durable: o.Durable, FailoverSafe: o.FailoverSafe, ServerEndsFixed: o.Outlives, FixedOutlives: o.Outlives,
		MinTTL: o.MinTTL, MaxTTL: o.MaxTTL,
	}
	return b, nil
}

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Notify implements [driver.Notifier]. The calls report losses, if they implement that interface.
func (b *Backend) Notify(lost func(driver.ID)) {
	if n, ok := b.calls.(driver.Notifier); ok {
		n.Notify(func(id driver.ID) {
			b.mu.Lock()
			m, is := b.requests.Find(id)
			if is {
				b.lose(m)
			}
			b.mu.Unlock()
			if is {
				lost(id)
			}
		})
	}
}

// closeTimeout is how long Close waits for the calls under way, and again for the releases.
const closeTimeout = 2 * time.Second

// Close implements [driver.Backend]. A service that hangs delays it by up to four seconds.
func (b *Backend) Close() error {
	b.mu.Lock()
	first := b.life.End()
	b.mu.Unlock()
	if !first {
		return nil
	}
	kit.Within(closeTimeout, b.life.Wait)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	kit.Within(closeTimeout+50*time.Millisecond, func() {
		inParallel(b.left(), func(l leftover) {
			if err := b.calls.Release(ctx, l.r, l.after); err != nil && !errors.Is(err, driver.ErrLost) {
				_ = b.calls.Release(ctx, l.r, l.after) // at once: there is no later
			}
		})
	})
	if b.o.Close == nil {
		return nil
	}
	return b.o.Close()
}

// leftover is a hold that Close ends after that time.
type leftover struct {
	r     driver.Request
	after time.Duration
}

// left returns what Close releases.
func (b *Backend) left() (all []leftover) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for m := range b.requests.All() {
		unsure := m.Uncertain || m.trying != nil
		after := m.kept()
		switch {
		case m.hold != nil, !m.Stands && !unsure: // it is no hold
		case b.caps.FixedOutlives && m.Outlives(): // it ends at its time
		default:
			r := m.Request
			r.Uncertain = unsure
			all = append(all, leftover{r, after})
		}
	}
	return all
}

// mostCalls is how many calls of one Renew or Close are under way at a time.
const mostCalls = 16

// inParallel calls f for each element, mostCalls at a time.
func inParallel[E any](es []E, f func(E)) {
	var wg sync.WaitGroup
	next := make(chan E)
	for range min(len(es), mostCalls) {
		wg.Go(func() {
			for e := range next {
				f(e)
			}
		})
	}
	for _, e := range es {
		next <- e
	}
	close(next)
	wg.Wait()
}
