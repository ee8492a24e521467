package dlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// grace bounds clean-up that goes on after its context ended, and each part of Close.
const grace = 3 * time.Second

// Client locks on one backend. It is safe for concurrent use. Close it when done.
type Client struct {
	b    driver.Backend
	caps Capabilities
	id   driver.ID
	set  settings

	ctx   context.Context // ends with Close
	stop  context.CancelCauseFunc
	calls sync.WaitGroup // calls under way that Close waits for

	mu     sync.Mutex
	closed chan struct{} // nil until Close begins, closed when it is done
	held   renewer
	back   giveBacks

	wall func() time.Time // the wall clock; tests set it
}

// New returns a client on a backend that the caller opened with its driver's own constructor, and
// that the client's Close closes. On an error the backend stays open.
func New(b driver.Backend, opts ...Option) (*Client, error) {
	if b == nil {
		return nil, wrap("open", "", "", invalid("the backend is nil"))
	}
	set := newSettings()
	for _, o := range opts {
		if o != nil {
			o.client(&set)
		}
	}
	c, err := newClient(b, driver.NewID(), set)
	return c, wrap("open", "", backendName(b), err)
}

func newClient(b driver.Backend, id driver.ID, set settings) (*Client, error) {
	c := &Client{b: b, id: id, set: set, caps: capabilities(b), wall: time.Now}
	if err := set.check(c.caps); err != nil {
		return nil, err
	}
	c.set.ttl = set.lease(c.caps)
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	if n, ok := b.(driver.Notifier); ok {
		n.Notify(c.loseID)
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

func backendName(b driver.Backend) string { return capabilities(b).Backend }

// Capabilities say what the backend can do. They do not change, and hold after Close.
func (c *Client) Capabilities() Capabilities { return c.caps }

// String names the backend and nothing else.
func (c *Client) String() string { return "dlock.Client(" + c.caps.Backend + ")" }

// GoString is String, so that no formatting shows what the client is connected with.
func (c *Client) GoString() string { return c.String() }

// sameQueues reports whether both clients stand over the same queues, as far as can be told within
// a process.
func (c *Client) sameQueues(d *Client) bool {
	return c == d || c.caps.Backend == d.caps.Backend && c.set.identity == d.set.identity && c.caps.Identity == d.caps.Identity
}

// Inspect returns who holds the lock and who waits for it, as the backend sees it now. It is for
// people and tests: by the time that it returns, it is history. Errors: [ErrInvalidName],
// [ErrClosed], [ErrUnsupported], the context's, the backend's, or that it did not answer within 10
// s.
func (c *Client) Inspect(ctx context.Context, name string) (Queue, error) {
	q, err := call(c, ctx, name, func(ctx context.Context) (Queue, error) { return c.b.Inspect(ctx, name) })
	return q, wrap("inspect", name, c.caps.Backend, err)
}

// Break ends the hold with that token, which [Client.Inspect] showed (0 where Capabilities say no
// fencing), so that it never ends a successor's. The hold can be neither renewed nor joined any
// more and runs out within its TTL, by which time its holder knows; [Force] ends it now. If no hold
// has the token any more, that is [ErrNotHeld]. Other errors: as of Inspect.
func (c *Client) Break(ctx context.Context, name string, t Token, opts ...BreakOption) error {
	var set breaking
	for _, o := range opts {
		if o != nil {
			o.breaks(&set)
		}
	}
	_, err := call(c, ctx, name, func(ctx context.Context) (struct{}, error) {
		b, ok := c.b.(driver.Breaker)
		if !ok {
			return struct{}{}, ErrUnsupported
		}
		return struct{}{}, b.Break(ctx, name, t, set.force)
	})
	return wrap("break", name, c.caps.Backend, err)
}

// call runs f, on a valid name, unless the client is closed.
func call[T any](c *Client, ctx context.Context, name string, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if err := checkName(name); err != nil {
		return zero, err
	}
	b, err := c.begin(ctx, noAnswer)
	if err != nil {
		return zero, err
	}
	defer c.done(b)
	v, err := f(b)
	return v, explain(b, err)
}

// begin starts a call that ends with the client, and with the time of limit, unless that is nil.
func (c *Client) begin(caller context.Context, limit *over) (*bound, error) {
	if err := contextErr(caller); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, ErrClosed
	}
	c.calls.Add(1)
	b := bounded(caller, limit)
	b.client = c.ctx
	return b, nil
}

// done is the end of a call.
func (c *Client) done(b *bound) {
	b.end()
	c.calls.Done()
}

// Close ends the contexts of the client's leases, gives back what it holds (but fixed leases where
// Capabilities say FixedOutlives: those stand until their time), makes its calls under way return
// [ErrClosed], and closes the backend. It takes a few seconds at most; what could not be given back
// by then expires, and is the error. After it, every call is ErrClosed. Close again waits for the
// first and returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed != nil {
		done := c.closed
		c.mu.Unlock()
		<-done
		return nil
	}
	c.closed = make(chan struct{})
	holds := c.held.clear()
	rest := c.back.clear()
	c.mu.Unlock()
	defer close(c.closed)

	c.stop(ErrClosed)
	for _, h := range holds {
		h.finish(ErrClosed)
		if !h.req.Fixed || !c.caps.FixedOutlives {
			rest = append(rest, h.req)
		}
	}
	if !within(grace, c.calls.Wait) {
		c.set.logger.Warn("dlock: calls still under way at Close", "backend", c.caps.Backend)
	}
	c.mu.Lock()
	rest = append(rest, c.back.clear()...) // from calls that ended only now
	c.mu.Unlock()
	err := c.releaseAll(rest)
	closed := make(chan error, 1)
	if !within(2*grace, func() { closed <- c.b.Close() }) {
		err = errors.Join(err, fmt.Errorf("the backend did not close within %s", 2*grace))
	} else {
		err = errors.Join(err, <-closed)
	}
	err = hide(err)
	return wrap("close", "", c.caps.Backend, err)
}

// within runs f and reports whether it returned in time. If not, it goes on alone.
func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// releaseAll gives back what is left at Close, several at a time.
func (c *Client) releaseAll(rs []driver.Request) error {
	if len(rs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	work := make(chan driver.Request, len(rs))
	for _, r := range rs {
		work <- r
	}
	close(work)
	var (
		mu     sync.Mutex
		failed int
		last   error
		wg     sync.WaitGroup
	)
	for range min(len(rs), 32) {
		wg.Go(func() {
			for r := range work {
				if err := c.b.Release(ctx, r); err != nil && !errors.Is(err, ErrLost) {
					mu.Lock()
					failed, last = failed+1, err
					mu.Unlock()
				}
			}
		})
	}
	if !within(grace+grace/2, wg.Wait) {
		return fmt.Errorf("holds could not be given back in time; they expire within their TTLs")
	}
	if failed > 0 {
		return fmt.Errorf("%s holds could not be given back; they expire within their TTLs: %w", strconv.Itoa(failed), last)
	}
	return nil
}
