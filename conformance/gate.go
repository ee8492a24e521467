package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Gate is a backend before another one: a bad network at the level of the interface, for harnesses
// that have no real one. With nothing switched on it changes nothing. It forwards the optional
// interfaces too, as ErrUnsupported where the backend has them not.
//
// What it cannot do is cut the backend's own traffic: calls that the driver makes by itself still
// get through. It makes up for what that spoils: a request that waits is taken back after its TTL
// off the line, as the service would.
//
// A Gate is safe for concurrent use. Close closes the backend behind it; off the line, only after
// heal.
type Gate struct {
	b     driver.Backend
	calls atomic.Int64

	mu        sync.Mutex
	cut, deaf chan struct{} // closed at heal; nil: the line is good
	drop      bool          // the next reply
	recording bool
	record    []driver.Request
	waits     map[*gateWait]struct{}
	closed    chan struct{}
}

// gateWait is an Acquire under way.
type gateWait struct {
	ttl     time.Duration
	cancel  context.CancelFunc
	expired bool
}

// ErrDropped is what a caller sees of a call whose reply [Gate.DropReply] dropped.
var ErrDropped = errors.New("conformance: the reply was dropped")

// NewGate returns a gate before b.
func NewGate(b driver.Backend) *Gate {
	return &Gate{b: b, waits: map[*gateWait]struct{}{}, closed: make(chan struct{})}
}

// Cut makes calls hang until heal, or until their contexts end or the gate is closed. Calls that
// were under way may still be executed; their replies hang.
func (g *Gate) Cut() (heal func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cut := make(chan struct{})
	g.cut = cut
	for w := range g.waits {
		time.AfterFunc(w.ttl, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if _, under := g.waits[w]; under && g.cut == cut {
				w.expired = true
				w.cancel()
			}
		})
	}
	return sync.OnceFunc(func() { g.heal(&g.cut, cut) })
}

// Deafen lets calls be executed and holds their replies back until heal.
func (g *Gate) Deafen() (heal func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	deaf := make(chan struct{})
	g.deaf = deaf
	return sync.OnceFunc(func() { g.heal(&g.deaf, deaf) })
}

func (g *Gate) heal(line *chan struct{}, since chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if *line == since {
		*line = nil
	}
	close(since)
}

// DropReply has the next call of Acquire, Renew or Release executed and its caller told
// [ErrDropped]. What an Acquire got that way is given back in the background, as a driver does.
func (g *Gate) DropReply() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop = true
}

// Record keeps the requests that Acquire is called with from now on; replay sends them all to the
// backend again, and drops the replies.
func (g *Gate) Record() (replay func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recording = true
	return func() {
		g.mu.Lock()
		rs := g.record
		g.record = nil
		g.mu.Unlock()
		for _, r := range rs {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			g.b.Acquire(ctx, r)
			cancel()
		}
	}
}

// Calls returns how often the methods that reach the service were called.
func (g *Gate) Calls() int64 { return g.calls.Load() }

// line returns what a call (or a reply) has to wait for now; nil: nothing.
func (g *Gate) line(reply bool) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cut == nil && reply {
		return g.deaf
	}
	return g.cut
}

// pass waits until the line lets a call (or a reply) through.
func (g *Gate) pass(ctx context.Context, reply bool) error {
	for {
		l := g.line(reply)
		if l == nil {
			return nil
		}
		select {
		case <-l:
		case <-ctx.Done():
			return ctx.Err()
		case <-g.closed:
			return driver.ErrClosed
		}
	}
}

func (g *Gate) dropped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.drop
	g.drop = false
	return was
}

// through makes a call of the backend behind the gate. On an error the caller has no result,
// although there may be one.
func through[R any](g *Gate, ctx context.Context, f func() R) (R, error) {
	var none R
	g.calls.Add(1)
	if err := g.pass(ctx, false); err != nil {
		return none, err
	}
	done := make(chan R, 1)
	go func() { done <- f() }()
	var r R
	for waiting := true; waiting; {
		select {
		case r = <-done:
			waiting = false
		case <-ctx.Done():
			if g.line(true) != nil {
				return none, ctx.Err()
			}
			r, waiting = <-done, false // f has the context too: how soon it minds is the driver's
		}
	}
	if err := g.pass(ctx, true); err != nil {
		return none, err
	}
	return r, nil
}

// Acquire implements [driver.Backend].
func (g *Gate) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	// Off the line nobody behind the gate must hear that the caller gave up, so the backend has a
	// context of its own.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		if g.line(false) == nil {
			stop()
		}
	})()
	w := g.enter(r, stop)
	a, err := through(g, ctx, func() grantOrError {
		grant, err := g.b.Acquire(inner, r)
		return grantOrError{grant, err}
	})
	if err == nil && g.dropped() {
		err = ErrDropped
	}
	expired := g.leave(w)
	if err != nil {
		go g.giveUp(r, stop)
		return driver.Grant{}, err
	}
	stop()
	switch {
	case a.err == nil:
	case expired:
		a.err = driver.ErrLost
	case ctx.Err() != nil && errors.Is(a.err, inner.Err()):
		// the caller's context says how it ended
		if errors.Is(a.err, driver.ErrHeld) {
			a.err = driver.Waited(ctx)
		} else {
			a.err = ctx.Err()
		}
	}
	return a.Grant, a.err
}

func (g *Gate) enter(r driver.Request, cancel context.CancelFunc) *gateWait {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.recording {
		g.record = append(g.record, r)
	}
	w := &gateWait{ttl: r.TTL, cancel: cancel}
	g.waits[w] = struct{}{}
	return w
}

func (g *Gate) leave(w *gateWait) (expired bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waits, w)
	return w.expired
}

// giveUp does what a driver does for an Acquire that failed: it removes what may stand, as soon as
// the line allows.
func (g *Gate) giveUp(r driver.Request, stop context.CancelFunc) {
	defer stop()
	if g.pass(context.Background(), false) != nil {
		return
	}
	stop()
	r.Uncertain = true
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	g.b.Release(ctx, r)
}

// Renew implements [driver.Backend].
func (g *Gate) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res, err := through(g, ctx, func() []driver.Renewal { return g.b.Renew(ctx, rs) })
	if err == nil && g.dropped() {
		err = ErrDropped
	}
	if err != nil {
		res = make([]driver.Renewal, len(rs))
		for i := range res {
			res[i].Err = err
		}
	}
	return res
}

// Release implements [driver.Backend].
func (g *Gate) Release(ctx context.Context, r driver.Request) error {
	answer, err := through(g, ctx, func() error { return g.b.Release(ctx, r) })
	if err == nil && g.dropped() {
		err = ErrDropped
	}
	if err != nil {
		return err
	}
	return answer
}

// Inspect implements [driver.Backend].
func (g *Gate) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	a, err := through(g, ctx, func() queueOrError {
		q, err := g.b.Inspect(ctx, name)
		return queueOrError{q, err}
	})
	if err != nil {
		return driver.Queue{}, err
	}
	return a.q, a.err
}

// Close implements [driver.Backend].
func (g *Gate) Close() error {
	g.mu.Lock()
	select {
	case <-g.closed:
		g.mu.Unlock()
		return nil
	default:
	}
	close(g.closed)
	cut := g.cut
	g.mu.Unlock()
	if cut == nil {
		return g.b.Close()
	}
	go func() {
		<-cut
		g.b.Close()
	}()
	return nil
}

// Capabilities implements [driver.Capable].
func (g *Gate) Capabilities() driver.Capabilities {
	if c, ok := g.b.(driver.Capable); ok {
		return c.Capabilities()
	}
	return driver.Capabilities{}
}

// Break implements [driver.Breaker].
func (g *Gate) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	b, ok := g.b.(driver.Breaker)
	if !ok {
		return driver.ErrUnsupported
	}
	answer, err := through(g, ctx, func() error { return b.Break(ctx, name, t, force) })
	if err != nil {
		return err
	}
	return answer
}

// List implements [driver.Lister].
func (g *Gate) List(ctx context.Context) ([]string, error) {
	l, ok := g.b.(driver.Lister)
	if !ok {
		return nil, driver.ErrUnsupported
	}
	type answer struct {
		names []string
		err   error
	}
	a, err := through(g, ctx, func() answer {
		names, err := l.List(ctx)
		return answer{names, err}
	})
	if err != nil {
		return nil, err
	}
	return a.names, a.err
}

// Notify implements [driver.Notifier]. Off the line, nothing is told.
func (g *Gate) Notify(lost func(driver.ID)) {
	if n, ok := g.b.(driver.Notifier); ok {
		n.Notify(func(id driver.ID) {
			if g.pass(context.Background(), true) == nil {
				lost(id)
			}
		})
	}
}
