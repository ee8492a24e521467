package dlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/hold"
	"github.com/dlock-go/dlock/internal/pair"
)

// grace bounds clean-up that continues after its context ended, and each part of Close.
const grace = hold.Grace

// Client makes locks on one backend. [Open] and [New] make a Client; the zero Client fails with
// [ErrInvalid]. It is safe for concurrent use. Call Close when done.
type Client struct {
	b     driver.Backend
	caps  Capabilities
	id    driver.ID
	set   settings
	holds *hold.Set
	hooks observers

	ctx   context.Context // ends with Close
	stop  context.CancelCauseFunc
	calls sync.WaitGroup // calls under way that Close waits for

	alarms alarm.Clock // the time of each call

	report atomic.Pointer[func(driver.ID)] // gets the losses that the backend reports

	mu     sync.Mutex
	closed chan struct{}          // nil until Close begins, closed when it is done
	lent   bool                   // it was given to Also
	kin    map[driver.ID]relation // what is known about other clients; nil: nothing
}

// New returns a client on a backend that the caller opened with the constructor of its driver. The
// client's Close closes the backend. A backend serves one client: open another backend for each. If
// New fails, the backend stays open. A nil or zero b fails with [ErrInvalid].
func New(b driver.Backend, opts ...Option) (*Client, error) {
	if isNil(b) {
		return nil, wrap("open", "", "", invalid("the backend is nil"))
	}
	if isZero(b) {
		return nil, wrap("open", "", "", invalid("the backend is the zero %T; make one with its driver's New", b))
	}
	set := newSettings()
	err := set.apply(opts)
	var c *Client
	if err == nil {
		c, err = newClient(b, driver.NewID(), set)
	}
	return c, wrap("open", "", capabilities(b).Backend, err)
}

// isNil reports whether there is no backend, or a nil one in an interface that is not nil.
func isNil(b driver.Backend) bool {
	v := reflect.ValueOf(b)
	switch v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return v.IsNil()
	}
	return false
}

// isZero reports whether the backend is the zero value of a driver's type, which claims no
// capability at all.
func isZero(b driver.Backend) bool {
	cb, ok := b.(driver.Capable)
	v := reflect.Indirect(reflect.ValueOf(b))
	return ok && v.IsZero() && cb.Capabilities() == (Capabilities{})
}

func newClient(b driver.Backend, id driver.ID, set settings) (*Client, error) {
	if isNil(b) {
		return nil, errors.New("the driver returned no backend")
	}
	if err := checkBackend(b); err != nil {
		return nil, err
	}
	if set.also != nil {
		var err error
		if b, err = set.join(b); err != nil {
			return nil, err
		}
	}
	if pair.Is(b) {
		id = pair.ClientID()
	}
	c := &Client{b: b, id: id, set: set, caps: capabilities(b)}
	if err := set.check(c.caps); err != nil {
		return nil, err
	}
	c.set.ttl = set.lease(c.caps)
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.hooks = newObservers(set.hooks, c.caps.Backend, set.logger)
	c.holds = hold.New(hold.Config{Backend: b, Name: c.caps.Backend, FixedOutlives: c.caps.FixedOutlives, Logger: set.logger, Renewed: c.hooks.callRenewed, Now: set.now})
	report := c.holds.Report
	c.report.Store(&report)
	if n, ok := b.(driver.Notifier); ok {
		n.Notify(func(id driver.ID) { (*c.report.Load())(id) })
	}
	return c, nil
}

func capabilities(b driver.Backend) Capabilities {
	caps := Capabilities{}
	if cb, ok := b.(driver.Capable); ok {
		caps = cb.Capabilities()
	}
	if caps.Backend == "" {
		caps.Backend = fmt.Sprintf("%T", b)
	}
	return caps
}

// opened returns the error for a client that neither Open nor New made.
func (c *Client) opened() error {
	if c == nil || c.b == nil {
		return invalid("the client is nil or its zero value; make one with Open or New")
	}
	return nil
}

// backend returns the name of the backend; "" if there is none.
func (c *Client) backend() string {
	if c == nil {
		return ""
	}
	return c.caps.Backend
}

// Capabilities returns what the backend can do. It never changes, and is available after Close.
func (c *Client) Capabilities() Capabilities {
	if c == nil {
		return Capabilities{}
	}
	return c.caps
}

// String returns a text that names the backend and nothing else.
func (c *Client) String() string { return "dlock.Client(" + c.backend() + ")" }

// GoString returns the same text as String, so that no formatting shows the parameters of the
// connection.
func (c *Client) GoString() string { return c.String() }

// List returns the names that have requests now, granted or waiting, sorted; nil if there are none.
// If the client has a prefix ([Open]), List returns the names with that prefix only, without it.
// List is for people and tools: it reads everything that the backend has, so its cost grows with
// that, and the result may be out of date when it returns. Errors: those of [Client.Inspect],
// except ErrInvalidName.
func (c *Client) List(ctx context.Context) ([]string, error) {
	names, err := ask(c, ctx, func(ctx context.Context) ([]string, error) {
		l, ok := c.b.(driver.Lister)
		if !ok {
			return nil, ErrUnsupported
		}
		return l.List(ctx)
	})
	if err != nil {
		return nil, wrap("list", "", c.backend(), err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Break ends the hold of that name with the token t, which [Client.Inspect] shows, and never the
// hold of a successor. Where Capabilities.Fencing is false, t is 0 and means the present holder, or
// all readers that hold the lock.
// The hold can no longer be renewed or joined and expires within its TTL; its holder learns of that
// by then. With [Force] it ends now.
//
// Errors: [ErrNotHeld] if no hold has the token any more; otherwise those of Inspect.
func (c *Client) Break(ctx context.Context, name string, t Token, opts ...BreakOption) error {
	var set breaking
	for _, o := range opts {
		if o == nil {
			return wrap("break", name, c.backend(), errNilOption)
		}
		o.breaks(&set)
	}
	_, err := call(c, ctx, name, func(ctx context.Context) (struct{}, error) {
		b, ok := c.b.(driver.Breaker)
		if !ok {
			return struct{}{}, ErrUnsupported
		}
		return struct{}{}, b.Break(ctx, name, t, set.force)
	})
	if err == ErrNotHeld {
		err = errNoHold
	}
	return wrap("break", name, c.backend(), err)
}

// call runs f, on a valid name, unless the client is closed.
func call[T any](c *Client, ctx context.Context, name string, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if err := checkName(name); err != nil {
		return zero, err
	}
	return ask(c, ctx, f)
}

// ask runs f, for at most the time that an answer may take, unless the client is closed.
func ask[T any](c *Client, ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	var zero T
	b, err := c.begin(ctx, noAnswer)
	if err != nil {
		return zero, err
	}
	defer c.done(b)
	v, err := f(b)
	return v, explain(b, err)
}

// begin starts a call that ends with the client, and when the time of limit, unless limit is nil,
// has passed.
func (c *Client) begin(caller context.Context, limit *timeLimit) (*bound, error) {
	if err := c.opened(); err != nil {
		return nil, err
	}
	if err := contextErr(caller); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed != nil:
		return nil, ErrClosed
	case c.lent:
		return nil, errLent
	}
	c.calls.Add(1)
	b := bounded(caller, limit, &c.alarms)
	b.client = c.ctx
	return b, nil
}

// done ends a call.
func (c *Client) done(b *bound) {
	b.end()
	c.calls.Done()
}

// graceLimit bounds a call that continues after its caller's context ended.
var graceLimit = &timeLimit{grace}

// release releases a request now. If that leaves the outcome unknown, it continues in the
// background.
func (c *Client) release(ctx context.Context, r driver.Request) error {
	ended, limit := contextErr(ctx), noAnswer
	if ended != nil {
		ctx, limit = context.WithoutCancel(ctx), graceLimit
	}
	b := bounded(ctx, limit, &c.alarms)
	defer b.end()
	err := c.holds.Release(b, r)
	if err == nil || errors.Is(err, ErrLost) {
		return err
	}
	if err = explain(b, err); ended != nil {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return err
}

// Close ends the contexts of the client's leases, releases its holds, makes calls under way return
// [ErrClosed], and closes the backend. Fixed leases are not released where
// Capabilities.FixedOutlives is set: they last for their full time.
//
// Close takes a few seconds at most. If some holds may not have been released by then, it returns
// an error, and they expire. After Close, every call fails with ErrClosed. A second Close waits for
// the first and returns nil.
func (c *Client) Close() error {
	if err := c.opened(); err != nil {
		return wrap("close", "", "", err)
	}
	c.mu.Lock()
	if c.lent { // the client that it was given to closes its backend
		c.mu.Unlock()
		return nil
	}
	if c.closed != nil {
		done := c.closed
		c.mu.Unlock()
		<-done
		return nil
	}
	c.closed = make(chan struct{})
	c.mu.Unlock()
	defer close(c.closed)

	c.stop(ErrClosed)
	c.holds.Close()
	returned := func() error {
		c.calls.Wait()
		c.holds.Wait()
		return nil
	}
	if ok, _ := within(grace, returned); !ok {
		c.set.logger.Warn("dlock: calls still under way at Close", "backend", c.caps.Backend)
	}
	ok, err := within(grace+grace/2, c.holds.ReleaseAll)
	if !ok {
		err = errors.New("the releases did not end in time; holds that may not have been released expire within their TTL")
	}
	within(grace, func() error { c.holds.ReportClosed(); return nil })
	ok, end := within(2*grace, c.b.Close)
	if !ok {
		end = fmt.Errorf("the backend did not close within %s", 2*grace)
	}
	return wrap("close", "", c.caps.Backend, hide(errors.Join(err, end)))
}

// within runs f. It reports whether f returned within d, and its error. If not, f continues on its
// own.
func within(d time.Duration, f func() error) (ok bool, err error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case err := <-done:
		return true, err
	case <-t.C:
		return false, nil
	}
}
