package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/hold"
)

// env is one run of one law: its test, its names, its clients. Every wait in it has a limit,
// whatever the driver does.
type env struct {
	T
	h     Harness
	caps  driver.Capabilities
	probe driver.Backend // it observes, and holds no lock of a law
	ctx   context.Context

	shortTTL   time.Duration // for leases that have to expire
	renewedTTL time.Duration // for leases that have to be renewed, also on a loaded machine
	// for leases that must not expire: not even the first renewal comes within the patience
	longTTL  time.Duration
	patience time.Duration // how long the law waits for an event
}

func newEnv(t T, h Harness) *env {
	t.Helper()
	e := &env{T: t, h: h, ctx: t.Context()}
	e.probe = e.open()
	if c, ok := e.probe.(driver.Capable); ok {
		e.caps = c.Capabilities()
	} else {
		e.caps.Backend = fmt.Sprintf("%T", e.probe)
	}
	e.shortTTL = h.TTL
	if e.shortTTL == 0 {
		e.shortTTL = max(e.caps.MinTTL, 200*time.Millisecond)
	}
	e.renewedTTL = max(e.shortTTL, time.Second)
	// a driver may wait for ten seconds until it leaves a server that does not answer
	e.patience = 20*time.Second + 3*e.shortTTL
	e.longTTL = 60*time.Second + 12*e.shortTTL
	if m := e.caps.MaxTTL; m > 0 {
		e.longTTL = min(e.longTTL, m)
	}
	return e
}

// name returns a name that is not in use.
func (e *env) name() string { return e.h.Prefix + "law-" + driver.NewID().String() }

func (e *env) open() driver.Backend {
	e.Helper()
	b := e.h.Open(e.T)
	if b == nil {
		e.Fatalf("Harness.Open returned nil")
	}
	e.Cleanup(func() { e.ends("Close of a backend", func() { b.Close() }) })
	return b
}

// client opens a client. Its locks have the long TTL unless the options say otherwise.
func (e *env) client(opts ...dlock.Option) *dlock.Client {
	e.Helper()
	return e.clientOn(e.open(), opts...)
}

func (e *env) clientOn(b driver.Backend, opts ...dlock.Option) *dlock.Client {
	e.Helper()
	c, err := dlock.New(b, append([]dlock.Option{dlock.TTL(e.longTTL), dlock.Logger(nil)}, opts...)...)
	if err != nil {
		e.Fatalf("dlock.New: %v", err)
	}
	e.Cleanup(func() { e.ends("Close of a client", func() { c.Close() }) })
	return c
}

// ends runs f, and fails the law if f does not return in time.
func (e *env) ends(what string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(e.patience + 10*time.Second):
		e.strict().Errorf("%s does not return", what)
	}
}

// call runs f under a context that lasts for the patience, and fails the law if f does not return.
func call[R any](e *env, what string, f func(ctx context.Context) R) R {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, e.patience)
	defer cancel()
	done := make(chan R, 1)
	go func() { done <- f(ctx) }()
	select {
	case r := <-done:
		return r
	case <-time.After(e.patience + 5*time.Second):
	}
	select { // if the machine stalled until now, f had no time to return yet
	case r := <-done:
		return r
	case <-time.After(time.Second):
		e.strict().Fatalf("%s does not return although its context ended", what)
		panic("unreachable")
	}
}

// attempt is one call of Lock under way.
type attempt struct {
	name   string
	what   string
	cancel context.CancelFunc
	done   chan struct{} // closed when it has returned; then the rest is set
	lease  *dlock.Lease
	err    error
	at     time.Time // of its return
}

// begin calls Lock, which may wait for as long as the law runs.
func (e *env) begin(m dlock.Mutex) *attempt { return e.beginIn(e.ctx, m) }

func (e *env) beginIn(ctx context.Context, m dlock.Mutex) *attempt {
	ctx, cancel := context.WithCancel(ctx)
	a := &attempt{
		name: m.Name(), what: "Lock of " + m.Name(), cancel: cancel, done: make(chan struct{}),
	}
	e.Cleanup(cancel)
	go func() {
		defer close(a.done)
		a.lease, a.err = m.Lock(ctx)
		a.at = time.Now()
	}()
	return a
}

// pending reports whether Lock still waits.
func (a *attempt) pending() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// wait blocks until Lock has returned.
func (a *attempt) wait(e *env) error {
	e.Helper()
	select {
	case <-a.done:
	case <-time.After(e.patience):
		a.waitsTooLong(e)
	}
	return a.err
}

// waitsTooLong fails the law.
func (a *attempt) waitsTooLong(e *env) {
	e.Helper()
	there := "unknown"
	if e.caps.Inspect {
		if q, err := e.inspectWith(e.probe, a.name); err != nil {
			there = err.Error()
		} else {
			there = show(q)
		}
	}
	e.Logf("it waits where one of these is:\n%s", acquires())
	e.Fatalf("%s still waits after %s; its queue: %s", a.what, e.patience, there)
}

// acquires returns the stacks of calls of Acquire under way, and of what drivers do beside them.
func acquires() string {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	var found []string
	for _, g := range strings.Split(string(all), "\n\n") {
		if strings.Contains(g, "/driver/") {
			found = append(found, g)
		}
	}
	return strings.Join(found, "\n\n")
}

// got waits for the lease.
func (a *attempt) got(e *env) *dlock.Lease {
	e.Helper()
	if err := a.wait(e); err != nil {
		e.Fatalf("%s: %v", a.what, err)
	}
	return a.lease
}

// gotBefore waits for the lease, and fails the law as soon as one of the later attempts has
// returned: that one will not release the lock.
func (a *attempt) gotBefore(e *env, later []*attempt) *dlock.Lease {
	e.Helper()
	for start := time.Now(); a.pending(); pauseSince(start) {
		for i, o := range later {
			if !o.pending() && a.pending() {
				e.Fatalf("%s, which arrived %d places later, returned (error %v), and the next in the queue still waits", o.what, i+1, o.err)
			}
		}
		if time.Since(start) > e.patience {
			a.waitsTooLong(e)
		}
	}
	return a.got(e)
}

// mustWait fails the law if Lock returned.
func (a *attempt) mustWait(e *env, why string) {
	e.Helper()
	if !a.pending() {
		e.Fatalf("%s returned (error %v) although %s", a.what, a.err, why)
	}
}

// lock takes the lock, and fails the law if it cannot.
func (e *env) lock(m dlock.Mutex) *dlock.Lease {
	e.Helper()
	return e.lockIn(e.ctx, m)
}

func (e *env) lockIn(ctx context.Context, m dlock.Mutex) *dlock.Lease {
	e.Helper()
	return e.beginIn(ctx, m).got(e)
}

// served takes the lock, and retries within the patience: a busy service may leave a call without
// an answer, in particular the first on new connections.
func (e *env) served(m dlock.Mutex) *dlock.Lease {
	e.Helper()
	for end := time.Now().Add(e.patience); ; {
		a := e.begin(m)
		if a.wait(e) == nil || time.Now().After(end) {
			return a.got(e)
		}
		pause(e.patience / 50)
	}
}

// visit locks and unlocks, whatever the TTL. It tries again if the lease expired first because the
// machine stalled.
func (e *env) visit(m dlock.Mutex) {
	e.Helper()
	const most = 5
	for i := 1; ; i++ {
		l := e.served(m)
		err := e.unlockErr(l)
		if err == nil {
			return
		}
		if i == most || !errors.Is(err, dlock.ErrLost) || time.Now().Before(l.Until()) {
			e.Fatalf("Unlock: %v", err)
		}
	}
}

type leaseOrError struct {
	lease *dlock.Lease
	err   error
}

func (e *env) tryIn(ctx context.Context, m dlock.Mutex) (*dlock.Lease, error) {
	e.Helper()
	r := call(e, "TryLock", func(bound context.Context) leaseOrError {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(bound, cancel)()
		l, err := m.TryLock(ctx)
		return leaseOrError{l, err}
	})
	return r.lease, r.err
}

// try takes the lock without waiting, and fails the law if it cannot.
func (e *env) try(m dlock.Mutex) *dlock.Lease {
	e.Helper()
	l, err := e.tryIn(e.ctx, m)
	if err != nil {
		e.Fatalf("TryLock of %s, which is free for it: %v", m.Name(), err)
	}
	return l
}

// mustBeHeld fails the law unless TryLock fails with ErrHeld. If TryLock succeeds while all leases
// in by, which have short TTLs, are still trusted, no stall excuses that.
func (e *env) mustBeHeld(m dlock.Mutex, why string, by ...*dlock.Lease) {
	e.Helper()
	_, err := e.tryIn(e.ctx, m)
	if err == nil && !slices.ContainsFunc(by, func(l *dlock.Lease) bool { return l.Err() != nil }) {
		e = e.strict()
	}
	if !errors.Is(err, dlock.ErrHeld) {
		e.Fatalf("TryLock returned error %v; want ErrHeld, because %s", err, why)
	}
}

// unlock releases the lease, and fails the law on an error.
func (e *env) unlock(l *dlock.Lease) {
	e.Helper()
	if err := e.unlockErr(l); err != nil {
		e.Fatalf("Unlock: %v", err)
	}
}

func (e *env) unlockErr(l *dlock.Lease) error {
	e.Helper()
	return call(e, "Unlock", l.Unlock)
}

// want fails the law unless err matches target.
func (e *env) want(what string, err, target error) {
	e.Helper()
	if !errors.Is(err, target) {
		e.Fatalf("%s returned error %v; want one that matches %q", what, err, target)
	}
}

// until waits for the condition.
func (e *env) until(what string, cond func() bool) {
	e.Helper()
	for start := time.Now(); !cond(); pauseSince(start) {
		if time.Since(start) > e.patience {
			e.Fatalf("after %s this is still not true: %s", e.patience, what)
		}
	}
}

// stays fails the law if the condition does not hold for a while. It is for events that must not
// happen, where nothing shows that they can no longer happen.
func (e *env) stays(what string, cond func() bool) {
	e.Helper()
	for end := time.Now().Add(e.shortTTL / 4); time.Now().Before(end); pause(5 * time.Millisecond) {
		if !cond() {
			e.Fatalf("this did not stay true: %s", what)
		}
	}
}

func pause(d time.Duration) { <-time.After(d) }

// moment returns a context that ends after many short pauses, one after the other. So a call under
// it has begun before the context ends, even if the machine stalls.
func (e *env) moment() context.Context {
	ctx, cancel := context.WithCancel(e.ctx)
	go func() {
		defer cancel()
		for range 25 {
			pause(2 * time.Millisecond)
		}
	}()
	return ctx
}

// pauseSince is the pause between two checks of a condition. It grows with the time waited so far.
func pauseSince(start time.Time) { pause(max(2*time.Millisecond, time.Since(start)/50)) }

// inspect returns the queue of the name.
func (e *env) inspect(name string) driver.Queue {
	e.Helper()
	q, err := e.inspectWith(e.probe, name)
	if err != nil {
		e.Fatalf("Inspect: %v", err)
	}
	return q
}

func (e *env) inspectWith(b driver.Backend, name string) (q driver.Queue, err error) {
	e.Helper()
	a := call(e, "Inspect", func(ctx context.Context) queueOrError {
		q, err := b.Inspect(ctx, name)
		return queueOrError{q, err}
	})
	return a.q, a.err
}

type queueOrError struct {
	q   driver.Queue
	err error
}

// close closes a client or a backend, and fails the law on an error.
func (e *env) close(c io.Closer) {
	e.Helper()
	if err := call(e, "Close", func(context.Context) error { return c.Close() }); err != nil {
		e.Errorf("Close: %v", err)
	}
}

// becomes blocks until the queue has that many holders and waiters. Waiters are not counted if the
// backend does not queue. If it has no Inspect, becomes only pauses for a moment.
func (e *env) becomes(name string, holders, waiters int) {
	e.Helper()
	if !e.caps.Inspect {
		pause(e.shortTTL / 4)
		return
	}
	var q driver.Queue
	for start := time.Now(); ; pauseSince(start) {
		if q = e.inspect(name); e.counts(q, holders, waiters) {
			return
		}
		if time.Since(start) > e.patience {
			e.Fatalf("after %s the queue has %[4]s; want %[2]d holders and %[3]d waiters", e.patience, holders, waiters, show(q))
		}
	}
}

// stands fails the law unless the queue has that many holders and waiters now.
func (e *env) stands(name string, holders, waiters int) {
	e.Helper()
	if !e.caps.Inspect {
		return
	}
	if q := e.inspect(name); !e.counts(q, holders, waiters) {
		e.Fatalf("the queue has %[3]s; want %[1]d holders and %[2]d waiters", holders, waiters, show(q))
	}
}

func (e *env) counts(q driver.Queue, holders, waiters int) bool {
	return len(q.Holders()) == holders && (len(q.Waiters()) == waiters || !e.caps.Queue)
}

func show(q driver.Queue) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d holders, %d waiters:", len(q.Holders()), len(q.Waiters()))
	for _, r := range append(q.Holders(), q.Waiters()...) {
		fmt.Fprintf(&s, " [%.8s of %.8s %s limit %d token %d since %s left %s]", r.ID, r.Owner, r.Mode, r.Limit, r.Token, r.Age, r.Left)
	}
	return s.String()
}

// together runs f n times concurrently, and reports the first error, which also ends the context of
// the others. Calls that hang fail the law, and report nothing after it.
func (e *env) together(n int, f func(ctx context.Context, i int) error) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, 2*e.patience)
	defer cancel()
	var first sync.Once
	defer first.Do(func() {}) // from then on nothing is reported
	e.ends("a group of concurrent calls", func() {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if err := f(ctx, i); err != nil {
					first.Do(func() { e.Errorf("%v", err) })
					cancel()
				}
			})
		}
		wg.Wait()
	})
}

// direct is a driver's client without the portable layer, except that a failed Acquire is followed
// by a release.
type direct struct {
	e *env
	driver.Backend
	id  driver.ID
	set *hold.Set
}

func (e *env) direct() *direct {
	e.Helper()
	return e.directOn(e.open())
}

func (e *env) directOn(b driver.Backend) *direct {
	d := &direct{e: e, Backend: b, id: driver.NewID()}
	d.set = hold.New(hold.Config{Backend: b, Logger: slog.New(slog.DiscardHandler)})
	e.Cleanup(d.set.Close)
	return d
}

// Acquire calls the driver. After an error the request is released in the background if need be.
func (d *direct) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return d.set.Acquire(ctx, r)
}

// ask returns a new request for an exclusive lock with the long TTL.
func (d *direct) ask(name string) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, Client: d.id, TTL: d.e.longTTL, Label: "law"}
}

// join returns a request that joins the hold of r.
func (d *direct) join(r driver.Request, t driver.Token) driver.Request {
	j := d.ask(r.Name)
	j.Owner, j.Token, j.Mode, j.Limit = r.Owner, t, r.Mode, r.Limit
	return j
}

type grantOrError struct {
	driver.Grant
	err error
}

// acquire calls Acquire with a time limit.
func (d *direct) acquire(r driver.Request) (driver.Grant, error) {
	d.e.Helper()
	g := call(d.e, "Acquire", func(ctx context.Context) grantOrError {
		g, err := d.Acquire(ctx, r)
		return grantOrError{g, err}
	})
	if g.err == nil {
		d.e.past("a grant", g.SentAt)
	}
	return g.Grant, g.err
}

// past fails the law if a SentAt is in the future.
func (e *env) past(what string, sentAt time.Time) {
	e.Helper()
	if ahead := time.Until(sentAt); ahead > 0 {
		e.strict().Errorf("SentAt of %s is %s ahead of the clock", what, ahead)
	}
}

// get is acquire of a request that has to be granted.
func (d *direct) get(r driver.Request) driver.Grant {
	d.e.Helper()
	g, err := d.acquire(r)
	if err != nil {
		d.e.Fatalf("Acquire: %v", err)
	}
	return g
}

// begin calls Acquire and returns a channel for its result.
func (d *direct) begin(r driver.Request) <-chan grantOrError {
	done := make(chan grantOrError, 1)
	ctx, cancel := context.WithTimeout(d.e.ctx, 2*d.e.patience)
	go func() {
		defer cancel()
		g, err := d.Acquire(ctx, r)
		done <- grantOrError{g, err}
	}()
	return done
}

// receive waits for the result of begin.
func (d *direct) receive(done <-chan grantOrError) grantOrError {
	d.e.Helper()
	select {
	case g := <-done:
		return g
	case <-time.After(d.e.patience):
		d.e.Fatalf("Acquire still waits after %s", d.e.patience)
		panic("unreachable")
	}
}

func (d *direct) release(r driver.Request) error {
	d.e.Helper()
	return call(d.e, "Release", func(ctx context.Context) error { return d.Release(ctx, r) })
}

// known repeats a call for a few seconds until its outcome is known. An unknown outcome, as of a
// service that stalls, proves nothing.
func known(call func() error) error {
	const most = 3 * time.Second
	for start := time.Now(); ; pause(50 * time.Millisecond) {
		err := call()
		if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrNotHeld) || time.Since(start) > most {
			return err
		}
	}
}

// isLost fails the law unless a renewal reports the request as lost.
func (d *direct) isLost(what string, r driver.Request) {
	d.e.Helper()
	if err := known(func() error { return d.renew(r).Err }); err == nil {
		d.e.Errorf("Renew of %s returned nil", what)
	} else {
		d.e.want("Renew of "+what, err, driver.ErrLost)
	}
}

// renew renews one request.
func (d *direct) renew(r driver.Request) driver.Renewal {
	d.e.Helper()
	res := call(d.e, "Renew", func(ctx context.Context) []driver.Renewal { return d.Renew(ctx, []driver.Request{r}) })
	if len(res) != 1 {
		d.e.Fatalf("Renew of 1 request has %d results", len(res))
	}
	if res[0].Err == nil {
		d.e.past("a renewal", res[0].SentAt)
	}
	return res[0]
}
