// Package dlock is a library of distributed locks: one [Mutex] over the service that a team already
// runs.
//
//	client, err := dlock.Open(ctx, "redis://localhost:6379/0?ttl=30s")
//	if err != nil { … }
//	defer client.Close()
//
//	lease, err := client.Mutex("orders/42").Lock(ctx) // ctx bounds the wait only
//	if err != nil { … }
//	defer lease.Unlock(ctx)
//
//	ctx = lease.Context(ctx)     // ends, with cause ErrLost, if the lease is lost
//	charge(ctx, lease.Token())   // the resource refuses a smaller token
//
// A URL picks the backend; a blank import of its driver makes the scheme known (package driver/all
// imports every one).
//
// # What it promises
//
// Waiters are served in the order of their arrival. A crashed holder blocks others for at most its
// TTL. A lease renews itself; if it cannot be proved in time it is lost, and its holder is told
// before the backend lets anybody else in: the client trusts a lease until TTL after the last
// successful call was sent, less a margin. That bound is only as good as the holder's attention to
// it: a process that was paused does not notice, and no lock service can stop what it then writes.
// Where that matters, pass [Lease.Token] to the resource and let it refuse a smaller one.
//
// # Owners
//
// A lock is held by an owner, not by a goroutine or a connection. The owner travels in the context:
// a lock of the same name under [Lease.Context] re-enters. The first pitfall is to forget that
// context: a lock of a name that the caller holds, under a context that does not carry the hold,
// waits for itself. The log says so once it has waited for a TTL, and TryLock's error at once.
//
// # Fencing tokens
//
// The tokens of exclusive holds of a name grow strictly from each holder to the next. The resource
// remembers the greatest that it has seen from an exclusive holder and refuses a smaller one. The
// token of a shared hold is compared with that bar but never raises it; that of a semaphore names
// the permit.
package dlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Token is a fencing token; see the package comment. 0 means that the backend has none.
type Token = driver.Token

// Queue is what stands under a name: holders and waiters with their tokens, ages and labels.
type Queue = driver.Queue

// Capabilities say what a backend can do.
type Capabilities = driver.Capabilities

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

// Open opens a client on the backend that the URL names, and reaches it or says why it cannot,
// within 10 s. The context bounds that only. Parameters of every URL: ttl (see [TTL]), prefix
// (before every name in the service's key space), label (see [Label]), identity (see [Identity]).
// What else is allowed depends on the scheme; an error lists it.
//
// No error, log line or String ever shows a password of the URL.
func Open(ctx context.Context, rawURL string, opts ...Option) (*Client, error) {
	c, err := open(ctx, rawURL, opts)
	if err != nil {
		scheme, _, _ := strings.Cut(rawURL, ":")
		if driver.Lookup(scheme) == nil {
			scheme = ""
		}
		return nil, wrap("open", "", scheme, err)
	}
	return c, nil
}

func open(ctx context.Context, rawURL string, opts []Option) (*Client, error) {
	if err := contextErr(ctx); err != nil {
		return nil, err
	}
	u, hosts, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	opener := driver.Lookup(u.Scheme)
	if opener == nil {
		return nil, unknownScheme(u.Scheme)
	}
	if u.Fragment != "" {
		return nil, invalid("the URL has a fragment; write # as %%23")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, invalid("the parameters of the URL are not well-formed; want name=value&name=value, percent-encoded")
	}
	set, prefix, err := newSettings().fromURL(values)
	if err != nil {
		return nil, err
	}
	u.RawQuery = values.Encode()
	for _, o := range opts {
		if o != nil {
			o.client(&set)
		}
	}
	if err := set.check(Capabilities{}); err != nil {
		return nil, err
	}
	id := driver.NewID()
	within := bounded(ctx, noAnswer)
	defer within.end()
	b, err := opener(within, driver.Config{URL: u, Hosts: hosts, Prefix: prefix, TTL: set.lease(Capabilities{}), Client: id, Logger: set.logger})
	if err != nil {
		return nil, scrub(explain(within, err), u)
	}
	c, err := newClient(b, id, set)
	if err != nil {
		b.Close()
	}
	return c, err
}

// parseURL parses a URL whose authority may name several hosts, with commas between, which net/url
// does not know. The URL has the first.
func parseURL(raw string) (*url.URL, []string, error) {
	bad := invalid("not a URL; want scheme://user:password@host:port,host:port/path?parameters, with special characters percent-encoded")
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || strings.ContainsAny(scheme, "/?#") {
		u, err := url.Parse(raw)
		if err != nil || u.Scheme == "" { // the error's text may show the password
			return nil, nil, bad
		}
		return u, nil, nil
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	list, after := rest[:end], rest[end:]
	user := ""
	if i := strings.LastIndexByte(list, '@'); i >= 0 {
		user, list = list[:i+1], list[i+1:]
	}
	hosts := strings.Split(list, ",")
	for _, h := range hosts {
		if u, err := url.Parse("x://" + h); err != nil || u.Host != h || h == "" && len(hosts) > 1 {
			return nil, nil, bad
		}
	}
	u, err := url.Parse(scheme + "://" + user + hosts[0] + after)
	if err != nil {
		return nil, nil, bad
	}
	if hosts[0] == "" {
		hosts = nil
	}
	return u, hosts, nil
}

// fromURL takes the parameters that all backends share out of values.
func (s settings) fromURL(values url.Values) (settings, string, error) {
	own := url.Values{}
	for _, name := range []string{"ttl", "prefix", "label", "identity"} {
		if v, ok := values[name]; ok {
			own[name] = v
			delete(values, name)
		}
	}
	p := driver.NewParams(own)
	s.ttl, s.chosen = p.Duration("ttl", s.ttl), own.Has("ttl")
	s.label = p.String("label", s.label)
	s.identity = p.String("identity", s.identity)
	prefix := p.String("prefix", "")
	err := p.Err()
	if err == nil {
		if e := checkText(prefix); e != nil {
			err = invalid("parameter \"prefix\": %w", e)
		}
	}
	return s, prefix, err
}

func (s settings) check(caps Capabilities) error {
	for what, text := range map[string]string{"label": s.label, "identity": s.identity} {
		if err := checkText(text); err != nil {
			return invalid("%s: %w", what, err)
		}
	}
	return checkTTL(s.lease(caps), caps)
}

// lease returns the TTL of locks for which nobody chose one: the client's, or the nearest to the
// default that the backend keeps.
func (s settings) lease(caps Capabilities) time.Duration {
	if s.chosen {
		return s.ttl
	}
	if caps.MaxTTL > 0 && caps.MaxTTL < defaultTTL {
		return caps.MaxTTL
	}
	return max(defaultTTL, caps.MinTTL)
}

// scrub hides the password of u, should the driver's error show it.
func scrub(err error, u *url.URL) error {
	password, ok := u.User.Password()
	if !ok || password == "" {
		return err
	}
	// every encoding has its own set of harmless characters
	_, asWritten, _ := strings.Cut(u.User.String(), ":")
	forms := []string{password, asWritten, url.QueryEscape(password), url.PathEscape(password)}
	for _, quoted := range []string{strconv.Quote(password), strconv.QuoteToASCII(password)} {
		forms = append(forms, quoted[1:len(quoted)-1])
	}
	// one may be part of another
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
	text := err.Error()
	clean := text
	for _, p := range forms {
		clean = strings.ReplaceAll(clean, p, "xxxxx")
	}
	if clean == text {
		return err
	}
	s := &scrubbed{text: clean}
	for _, is := range append(sentinels, context.Canceled, context.DeadlineExceeded) {
		if errors.Is(err, is) {
			s.is = append(s.is, is)
		}
	}
	return s
}

// scrubbed stands for an error that showed a password. It matches the same sentinels; the rest of
// the chain would show it again.
type scrubbed struct {
	text string
	is   []error
}

func (e *scrubbed) Error() string   { return e.text }
func (e *scrubbed) Unwrap() []error { return e.is }

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
