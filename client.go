package dlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/hold"
)

// grace bounds clean-up that goes on after its context ended, and each part of Close.
const grace = hold.Grace

// Client locks on one backend. It is safe for concurrent use. Close it when done.
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

	mu     sync.Mutex
	closed chan struct{}          // nil until Close begins, closed when it is done
	kin    map[driver.ID]relation // what it found out about other clients; nil: nothing
}

// New returns a client on a backend that the caller opened with its driver's own constructor, and
// that the client's Close closes. A backend serves one client: make another one for each. On an
// error the backend stays open.
func New(b driver.Backend, opts ...Option) (*Client, error) {
	if isNil(b) {
		return nil, wrap("open", "", "", invalid("the backend is nil"))
	}
	if isZero(b) {
		return nil, wrap("open", "", "", invalid("the backend is the zero %T; its driver's New makes one", b))
	}
	set := newSettings()
	err := set.apply(opts)
	var c *Client
	if err == nil {
		c, err = newClient(b, driver.NewID(), set)
	}
	return c, wrap("open", "", capabilities(b).Backend, err)
}

// isNil reports whether there is no backend, or a nil one in an interface that is not.
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

// isZero reports whether the backend is the zero value of a driver's, which says that it can do
// nothing at all.
func isZero(b driver.Backend) bool {
	cb, ok := b.(driver.Capable)
	v := reflect.Indirect(reflect.ValueOf(b))
	return ok && v.IsZero() && cb.Capabilities() == (Capabilities{})
}

func newClient(b driver.Backend, id driver.ID, set settings) (*Client, error) {
	if err := checkBackend(b); err != nil {
		return nil, err
	}
	c := &Client{b: b, id: id, set: set, caps: capabilities(b)}
	if err := set.check(c.caps); err != nil {
		return nil, err
	}
	c.set.ttl = set.lease(c.caps)
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.hooks = newObservers(set.hooks, c.caps.Backend, set.logger)
	c.holds = hold.New(hold.Config{Backend: b, Name: c.caps.Backend, FixedOutlives: c.caps.FixedOutlives, Logger: set.logger, Renewed: c.hooks.tellRenewal, Now: set.now})
	if n, ok := b.(driver.Notifier); ok {
		n.Notify(c.holds.Report)
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

// opened returns what is wrong with a client that neither Open nor New made.
func (c *Client) opened() error {
	if c == nil || c.b == nil {
		return invalid("the client is nil or its zero value; Open and New make one")
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

// Capabilities say what the backend can do. They do not change, and hold after Close.
func (c *Client) Capabilities() Capabilities {
	if c == nil {
		return Capabilities{}
	}
	return c.caps
}

// String names the backend and nothing else.
func (c *Client) String() string { return "dlock.Client(" + c.backend() + ")" }

// GoString is String, so that no formatting shows what the client is connected with.
func (c *Client) GoString() string { return c.String() }

// List returns the names that have requests now, granted or waiting, sorted; nil if there are none.
// Of names with a prefix ([Open]) it returns those of the client's own, without it. It is for
// people and tools: it reads all that the backend has, so its cost grows with that, and by the time
// that it returns, it is history. Errors: as of Inspect, but for the name.
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

// Break ends the hold with that token, which [Client.Inspect] showed (0 where Capabilities say no
// fencing), so that it never ends a successor's. The hold can be neither renewed nor joined any
// more and runs out within its TTL, by which time its holder knows; [Force] ends it now. If no hold
// has the token any more, that is [ErrNotHeld]. Other errors: as of Inspect.
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

// ask runs f, for as long as an answer may take, unless the client is closed.
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

// begin starts a call that ends with the client, and with the time of limit, unless that is nil.
func (c *Client) begin(caller context.Context, limit *timeLimit) (*bound, error) {
	if err := c.opened(); err != nil {
		return nil, err
	}
	if err := contextErr(caller); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, ErrClosed
	}
	c.calls.Add(1)
	b := bounded(caller, limit, &c.alarms)
	b.client = c.ctx
	return b, nil
}

// done is the end of a call.
func (c *Client) done(b *bound) {
	b.end()
	c.calls.Done()
}

// graceLimit bounds what goes on after its caller's context ended.
var graceLimit = &timeLimit{grace}

// release releases a request now, or in the background if that leaves the outcome unknown.
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

// Close ends the contexts of the client's leases, gives back what it holds (but fixed leases where
// Capabilities say FixedOutlives: those stand until their time), makes its calls under way return
// [ErrClosed], and closes the backend. It takes a few seconds at most; what may not have been given
// back by then is the error, and expires. After it, every call is ErrClosed. Close again waits for
// the first and returns nil.
func (c *Client) Close() error {
	if err := c.opened(); err != nil {
		return wrap("close", "", "", err)
	}
	c.mu.Lock()
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
		err = errors.New("the releases did not end in time; what may not have been released expires within its TTL")
	}
	within(grace, func() error { c.holds.ReportClosed(); return nil })
	ok, end := within(2*grace, c.b.Close)
	if !ok {
		end = fmt.Errorf("the backend did not close within %s", 2*grace)
	}
	return wrap("close", "", c.caps.Backend, hide(errors.Join(err, end)))
}

// within runs f. It reports whether f returned in time, and what; if not, f goes on alone.
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
