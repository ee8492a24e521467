package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// FaultInjector is a backend in front of another one that simulates a bad network, for harnesses
// that cannot have a real one. Without a fault it changes nothing. It forwards the optional
// interfaces too, and returns ErrUnsupported if the backend does not have them.
//
// It cannot block the backend's own traffic: calls that the driver makes in the background still
// get through. So it does one thing in place of the service: if a request waits when its caller is
// cut off, it is removed after its TTL, even if it was granted meanwhile.
//
// NewFaultInjector makes one; [dlock.New] refuses the zero FaultInjector. It is safe for concurrent
// use. Close closes the backend behind it; during a Partition it does so only after heal.
type FaultInjector struct {
	b     driver.Backend
	calls atomic.Int64

	mu        sync.Mutex
	partition chan struct{} // closed at heal; nil: calls get through
	held      chan struct{} // closed at heal; nil: replies get through
	drop      bool          // the next reply is dropped
	recording bool
	recorded  []driver.Request
	pending   map[*pendingAcquire]struct{}
	closed    chan struct{}
}

// pendingAcquire is an Acquire under way.
type pendingAcquire struct {
	r       driver.Request
	cancel  context.CancelFunc
	expired bool
}

// ErrDropped is the error of a call whose reply [FaultInjector.DropReply] dropped.
var ErrDropped = errors.New("conformance: the reply was dropped")

// NewFaultInjector returns a fault injector in front of b.
func NewFaultInjector(b driver.Backend) *FaultInjector {
	return &FaultInjector{b: b, pending: map[*pendingAcquire]struct{}{}, closed: make(chan struct{})}
}

// Partition makes calls hang until heal, until their contexts end, or until Close. Calls that were
// under way may still be executed; their replies hang.
func (f *FaultInjector) Partition() (heal func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	partition := make(chan struct{})
	f.partition = partition
	for p := range f.pending {
		time.AfterFunc(p.r.TTL, func() {
			f.mu.Lock()
			_, under := f.pending[p]
			expires := under && f.partition == partition
			p.expired = p.expired || expires
			f.mu.Unlock()
			if expires {
				p.cancel()
				r := p.r
				r.Uncertain = true // its Acquire is under way
				f.b.Release(context.Background(), r)
			}
		})
	}
	return sync.OnceFunc(func() { f.heal(&f.partition, partition) })
}

// HoldReplies lets calls be executed and holds their replies back until heal.
func (f *FaultInjector) HoldReplies() (heal func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := make(chan struct{})
	f.held = held
	return sync.OnceFunc(func() { f.heal(&f.held, held) })
}

// heal ends the fault that began with that channel, unless another one has replaced it.
func (f *FaultInjector) heal(fault *chan struct{}, began chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if *fault == began {
		*fault = nil
	}
	close(began)
}

// DropReply makes the next call of Acquire, Renew or Release fail with [ErrDropped] after it was
// executed.
func (f *FaultInjector) DropReply() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop = true
}

// Record keeps the requests of all calls of Acquire from now on. replay sends them to the backend
// again, and drops the replies.
func (f *FaultInjector) Record() (replay func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recording = true
	return func() {
		f.mu.Lock()
		rs := f.recorded
		f.recorded = nil
		f.mu.Unlock()
		for _, r := range rs {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			f.b.Acquire(ctx, r)
			cancel()
		}
	}
}

// Calls returns how often the methods that reach the service were called.
func (f *FaultInjector) Calls() int64 { return f.calls.Load() }

// fault returns what a call (or a reply) has to wait for now; nil: nothing.
func (f *FaultInjector) fault(reply bool) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.partition == nil && reply {
		return f.held
	}
	return f.partition
}

// pass blocks until a call (or a reply) gets through.
func (f *FaultInjector) pass(ctx context.Context, reply bool) error {
	for {
		fault := f.fault(reply)
		if fault == nil {
			return nil
		}
		select {
		case <-fault:
		case <-ctx.Done():
			return ctx.Err()
		case <-f.closed:
			return driver.ErrClosed
		}
	}
}

func (f *FaultInjector) dropped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.drop
	f.drop = false
	return was
}

// through makes a call of the backend. After an error the caller has no result, although the call
// may have been executed.
func through[R any](f *FaultInjector, ctx context.Context, call func() R) (R, error) {
	var none R
	f.calls.Add(1)
	if err := f.pass(ctx, false); err != nil {
		return none, err
	}
	done := make(chan R, 1)
	go func() { done <- call() }()
	var r R
	for waiting := true; waiting; {
		select {
		case r = <-done:
			waiting = false
		case <-ctx.Done():
			if f.fault(true) != nil {
				return none, ctx.Err()
			}
			// the call has the context too; how soon it returns is up to the driver
			r, waiting = <-done, false
		}
	}
	if err := f.pass(ctx, true); err != nil {
		return none, err
	}
	return r, nil
}

// Acquire implements [driver.Backend].
func (f *FaultInjector) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	// while the caller is cut off, the backend must not learn that the caller abandoned the call,
	// so the call has a context of its own
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		if f.fault(false) == nil {
			stop()
		}
	})()
	p := f.add(r, stop)
	a, err := through(f, ctx, func() grantOrError {
		grant, err := f.b.Acquire(inner, r)
		return grantOrError{grant, err}
	})
	if err == nil && f.dropped() {
		err = ErrDropped
	}
	expired := f.remove(p)
	if err != nil {
		go func() {
			_ = f.pass(context.Background(), false)
			stop()
		}()
		return driver.Grant{}, err
	}
	stop()
	switch {
	case expired: // even if it was granted meanwhile: it has been released
		return driver.Grant{}, driver.ErrLost
	case a.err == nil:
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

func (f *FaultInjector) add(r driver.Request, cancel context.CancelFunc) *pendingAcquire {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.recording {
		f.recorded = append(f.recorded, r)
	}
	p := &pendingAcquire{r: r, cancel: cancel}
	f.pending[p] = struct{}{}
	return p
}

func (f *FaultInjector) remove(p *pendingAcquire) (expired bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pending, p)
	return p.expired
}

// Renew implements [driver.Backend].
func (f *FaultInjector) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res, err := through(f, ctx, func() []driver.Renewal { return f.b.Renew(ctx, rs) })
	if err == nil && f.dropped() {
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
func (f *FaultInjector) Release(ctx context.Context, r driver.Request) error {
	answer, err := through(f, ctx, func() error { return f.b.Release(ctx, r) })
	if err == nil && f.dropped() {
		err = ErrDropped
	}
	if err != nil {
		return err
	}
	return answer
}

// Inspect implements [driver.Backend].
func (f *FaultInjector) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	a, err := through(f, ctx, func() queueOrError {
		q, err := f.b.Inspect(ctx, name)
		return queueOrError{q, err}
	})
	if err != nil {
		return driver.Queue{}, err
	}
	return a.q, a.err
}

// Close implements [driver.Backend].
func (f *FaultInjector) Close() error {
	f.mu.Lock()
	select {
	case <-f.closed:
		f.mu.Unlock()
		return nil
	default:
	}
	close(f.closed)
	partition := f.partition
	f.mu.Unlock()
	if partition == nil {
		return f.b.Close()
	}
	go func() {
		<-partition
		f.b.Close()
	}()
	return nil
}

// Capabilities implements [driver.Capable].
func (f *FaultInjector) Capabilities() driver.Capabilities {
	if c, ok := f.b.(driver.Capable); ok {
		return c.Capabilities()
	}
	return driver.Capabilities{}
}

// Break implements [driver.Breaker].
func (f *FaultInjector) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	b, ok := f.b.(driver.Breaker)
	if !ok {
		return driver.ErrUnsupported
	}
	answer, err := through(f, ctx, func() error { return b.Break(ctx, name, t, force) })
	if err != nil {
		return err
	}
	return answer
}

// List implements [driver.Lister].
func (f *FaultInjector) List(ctx context.Context) ([]string, error) {
	l, ok := f.b.(driver.Lister)
	if !ok {
		return nil, driver.ErrUnsupported
	}
	type answer struct {
		names []string
		err   error
	}
	a, err := through(f, ctx, func() answer {
		names, err := l.List(ctx)
		return answer{names, err}
	})
	if err != nil {
		return nil, err
	}
	return a.names, a.err
}

// Explain implements [driver.Explainer].
func (f *FaultInjector) Explain(id driver.ID) error {
	if e, ok := f.b.(driver.Explainer); ok {
		return e.Explain(id)
	}
	return nil
}

// Raise implements [driver.Raiser].
func (f *FaultInjector) Raise(ctx context.Context, r driver.Request, t driver.Token) error {
	b, ok := f.b.(driver.Raiser)
	if !ok {
		return driver.ErrUnsupported
	}
	answer, err := through(f, ctx, func() error { return b.Raise(ctx, r, t) })
	if err != nil {
		return err
	}
	return answer
}

// Notify implements [driver.Notifier]. A client that is cut off is not notified.
func (f *FaultInjector) Notify(lost func(driver.ID)) {
	if n, ok := f.b.(driver.Notifier); ok {
		n.Notify(func(id driver.ID) {
			if f.pass(context.Background(), true) == nil {
				lost(id)
			}
		})
	}
}
