package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/fence"
)

// The names that clients lock: read-write locks, and one semaphore.
var (
	locks     = []string{"a", "b", "c"}
	semaphore = "permits"
	names     = append(locks[:len(locks):len(locks)], semaphore)
)

// client is a client with its goroutines, which lock at random until they are to stop.
type client struct {
	plan
	proc int
	w    *history.Writer
	c    *dlock.Client
	net  *conformance.FaultInjector // nil: its network is outside of the process
	ops  atomic.Uint64

	ctx  context.Context // ends when the client is killed within its process
	kill context.CancelFunc
	stop chan struct{}  // closed: begin nothing new
	goes sync.WaitGroup // its goroutines

	mu   sync.Mutex
	live map[uint64]*lease
	gate chan struct{} // closed at the end of what stops the client's work; nil: nothing does
}

// plan is what the clients of a storm have in common.
type plan struct {
	Seed      uint64
	TTL       time.Duration
	Lanes     int    // goroutines of each client
	Registers string // address
}

// lease is a lease, and the call of Lock that returned it.
type lease struct {
	*dlock.Lease
	op    uint64
	lane  int
	until time.Time // the last that was recorded
}

// newClient returns a client that locks on the backend, which it closes. Its goroutines run from
// work on.
func newClient(p plan, proc int, b driver.Backend, w *history.Writer) (*client, error) {
	c := &client{plan: p, proc: proc, w: w, stop: make(chan struct{}), live: map[uint64]*lease{}}
	c.net, _ = b.(*conformance.FaultInjector)
	c.ctx, c.kill = context.WithCancel(context.Background())
	var err error
	c.c, err = dlock.New(b, dlock.TTL(p.TTL), dlock.Logger(nil), dlock.Label(fmt.Sprint("process ", proc)), dlock.Observe(dlock.Hooks{
		Renewed: func(dlock.Renewal) { c.renewed() },
		Ended:   c.ended,
	}))
	if err != nil {
		return nil, err
	}
	w.Add(history.Event{Kind: history.Begin, Proc: proc})
	return c, nil
}

// renewed records the ends of trust that a renewal moved.
func (c *client) renewed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.live {
		if u := l.Until(); !u.Equal(l.until) {
			l.until = u
			c.w.Add(history.Event{Kind: history.Trust, Proc: c.proc, Op: l.op, Until: c.w.At(u)})
		}
	}
}

// ended records the losses of the leases of a hold, at the time at which it was lost.
func (c *client) ended(_ context.Context, end dlock.HoldEnd) {
	if end.Err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.live {
		if l.Name() != end.Name || l.Token() != end.Token {
			continue
		}
		select {
		case <-l.Lost():
			c.w.Add(history.Event{At: c.w.At(end.At), Kind: history.Lost, Proc: c.proc, Op: l.op, Text: string(end.Loss)})
		default:
		}
	}
}

// start starts the goroutines.
func (c *client) start() {
	for lane := range c.Lanes {
		c.goes.Go(func() {
			d, err := openDesk(c.Registers)
			if err != nil {
				panic(err)
			}
			defer d.c.Close()
			g := &goroutine{client: c, lane: lane, desk: d, lots: rand.New(rand.NewPCG(c.Seed, uint64(c.proc)<<16|uint64(lane)))}
			for {
				select {
				case <-c.stop:
					return
				case <-c.ctx.Done():
					return
				default:
					g.round()
				}
			}
		})
	}
}

// warm makes the client use what it will need: each goroutine locks once, behind another one. It
// may take them several times, since servers may be down.
func (c *client) warm(patience time.Duration) error {
	errs := make(chan error, c.Lanes)
	end := time.Now().Add(patience)
	for range c.Lanes {
		go func() {
			for {
				l, err := c.c.Mutex("warm").Lock(c.ctx)
				if err == nil {
					if err = l.Unlock(c.ctx); errors.Is(err, dlock.ErrLost) {
						err = nil
					}
				}
				if err == nil || time.Now().After(end) {
					errs <- err
					return
				}
			}
		}()
	}
	var all []error
	for range c.Lanes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// goroutine is one of the goroutines of a client.
type goroutine struct {
	*client
	lane int
	desk *desk
	lots *rand.Rand
}

// moment is a short time.
func (g *goroutine) moment() time.Duration {
	return time.Duration(g.lots.Int64N(int64(20 * time.Millisecond)))
}

func (g *goroutine) in(of int) bool { return g.lots.IntN(of) == 0 } // one time of so many

// round locks once, in some way, does something with the lease, and releases it.
func (g *goroutine) round() {
	a := attempt{name: names[g.lots.IntN(len(names))], ctx: g.ctx}
	switch {
	case a.name == semaphore:
		a.shared, a.limit = true, 2+g.lots.IntN(2)
	default:
		a.shared = g.in(4)
	}
	switch g.lots.IntN(20) {
	case 0, 1, 2:
		a.try = true
	case 3, 4:
		a.wait = time.Duration(g.lots.Int64N(int64(g.TTL / 2)))
	case 5:
		a.fixed = true
	case 6, 7:
		if q, err := g.desk.ask(question{What: "take", Name: a.name}); err == nil && q.Owner != "" {
			o, err := dlock.ParseOwner(q.Owner)
			if err != nil {
				panic(err)
			}
			a.joins, a.ctx = holdID(o), dlock.WithOwner(a.ctx, o)
		}
	}
	if l := g.lock(a); l != nil {
		g.use(a, l)
	}
	rest(g.ctx, g.moment())
}

// use is what a holder does.
func (g *goroutine) use(a attempt, l *lease) {
	first := l
	defer func() { g.unlock(l) }()
	if g.in(5) {
		g.desk.ask(question{What: "offer", Name: a.name, Owner: l.Owner().String()})
	}
	if a.limit == 0 && !a.shared && a.joins == "" {
		g.update(a, l)
	} else {
		g.work(l)
	}
	switch g.lots.IntN(6) {
	case 0: // nest
		if n := g.lock(attempt{name: a.name, shared: a.shared, limit: a.limit, parent: l.op, ctx: l.Context(g.ctx)}); n != nil {
			g.work(n)
			g.unlock(n)
		}
	case 1: // downgrade
		if a.shared {
			break
		}
		if n := g.lock(attempt{name: a.name, shared: true, parent: l.op, ctx: l.Context(g.ctx)}); n != nil {
			g.unlock(l)
			g.work(n)
			l = n
		}
	}
	if a.fixed && l == first && g.in(2) { // to its end; what it was downgraded to is renewed
		select {
		case <-l.Lost():
		case <-g.ctx.Done():
		}
	}
	if g.in(4) {
		g.look(l)
	}
}

// work takes a moment, and now and then longer than the TTL, without a look at the lease.
func (g *goroutine) work(l *lease) {
	if !g.in(200) {
		rest(g.ctx, g.moment())
		g.thawed()
		return
	}
	d := g.TTL + time.Duration(g.lots.Int64N(int64(g.TTL)))
	g.w.Add(history.Event{Kind: history.Linger, Proc: g.proc, Lane: g.lane, Op: l.op, For: int64(d)})
	rest(g.ctx, d)
	g.look(l)
}

// freeze stops the client's work, as SIGSTOP stops a process, until thaw.
func (c *client) freeze() (thaw func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gate := make(chan struct{})
	c.gate = gate
	return func() { close(gate) }
}

// thawed waits until the client's work may go on.
func (c *client) thawed() {
	c.mu.Lock()
	gate := c.gate
	c.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-c.ctx.Done():
		}
	}
}

// update adds one to both registers. It does not look at its lease in between.
func (g *goroutine) update(a attempt, l *lease) {
	m, err := fence.Of(l.Lease)
	if err != nil && !errors.Is(err, dlock.ErrUnsupported) {
		return // it is lost already
	}
	q, err := g.desk.ask(question{What: "read", Name: a.name, Mark: m.String()})
	if err != nil {
		return
	}
	rest(g.ctx, g.moment())
	g.work(l)
	if g.ctx.Err() == nil {
		g.desk.ask(question{What: "write", Name: a.name, Mark: m.String(), Fenced: q.Fenced + 1, Plain: q.Plain + 1})
	}
}

// attempt is a call of Lock.
type attempt struct {
	ctx        context.Context
	name       string
	shared     bool
	limit      int
	try, fixed bool
	wait       time.Duration // until the wait is cancelled; 0: never
	parent     uint64
	joins      string
}

// lock calls Lock and records it. It returns nil if there is no lease.
func (g *goroutine) lock(a attempt) *lease {
	var opts []dlock.LockOption
	if a.fixed {
		opts = append(opts, dlock.FixedLease(g.TTL))
	}
	var m dlock.Mutex
	switch {
	case a.limit > 0:
		m = g.c.Semaphore(a.name, a.limit, opts...)
	case a.shared:
		m = g.c.RWMutex(a.name, opts...).Read()
	default:
		m = g.c.Mutex(a.name, opts...)
	}
	op := uint64(g.proc+1)<<32 | g.ops.Add(1)
	event := func(k history.Kind) history.Event { return history.Event{Kind: k, Proc: g.proc, Lane: g.lane, Op: op} }
	call := m.Lock
	if a.try {
		call = m.TryLock
	}
	ctx := a.ctx
	e := event(history.Call)
	e.Name, e.Shared, e.Limit, e.Try, e.Fixed, e.Parent, e.Joins = a.name, a.shared, a.limit, a.try, a.fixed, a.parent, a.joins
	g.w.Add(e)
	if a.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.wait)
		defer cancel()
		defer context.AfterFunc(ctx, func() { g.w.Add(event(history.Cancel)) })()
	}
	got, err := call(ctx)
	if err != nil {
		e := event(history.Refused)
		e.Class, e.Text = classOf(err), err.Error()
		g.w.Add(e)
		return nil
	}
	l := &lease{got, op, g.lane, got.Until()}
	e = event(history.Granted)
	e.ID, e.Token, e.Until = holdID(got.Owner()), uint64(got.Token()), g.w.At(l.until)
	g.w.Add(e)
	g.mu.Lock()
	g.live[op] = l
	g.mu.Unlock()
	// it may have been lost before it was in live
	select {
	case <-got.Lost():
		g.w.Add(event(history.Lost))
	default:
	}
	return l
}

// look asks whether the lease is still trusted.
func (g *goroutine) look(l *lease) {
	at := g.w.Now()
	err := l.Err()
	g.w.Add(history.Event{At: at, Kind: history.Look, Proc: g.proc, Lane: g.lane, Op: l.op, Class: classOf(err), Until: g.w.At(l.Until())})
}

func (g *goroutine) unlock(l *lease) {
	ctx, cancel := context.WithCancel(context.Background())
	if g.in(20) {
		cancel() // it is released all the same
	}
	defer cancel()
	g.mu.Lock()
	delete(g.live, l.op)
	g.mu.Unlock()
	g.w.Add(history.Event{Kind: history.Unlock, Proc: g.proc, Lane: g.lane, Op: l.op})
	err := l.Unlock(ctx)
	e := history.Event{Kind: history.Unlocked, Proc: g.proc, Lane: g.lane, Op: l.op, Class: classOf(err), Until: g.w.At(l.Until())}
	if err != nil {
		e.Text = err.Error()
	}
	g.w.Add(e)
}

// holdID returns the ID of an owner, as Inspect shows it.
func holdID(o dlock.Owner) string {
	if f := strings.Split(o.String(), "."); len(f) == 6 {
		return f[4]
	}
	return ""
}

func classOf(err error) history.Class {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, dlock.ErrLost):
		return history.Loss
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return history.Cancelled
	case errors.Is(err, dlock.ErrHeld):
		return history.Held
	case errors.Is(err, dlock.ErrNotHeld):
		return history.NotHeld
	}
	return history.Unknown
}
