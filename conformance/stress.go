package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

var stress = []Law{
	{Name: "storm", run: storm, stall: tenthOfShortTTL,
		Sentence: "under random load, holds that exclude each other do not overlap, tokens grow, waiters that were seen in the queue are granted in order, and the hooks are called once for each Lock and each hold"},
}

// seed returns DLOCK_SEED, or a new one, and prints it.
func (e *env) seed() uint64 {
	e.Helper()
	s := rand.Uint64()
	if text := os.Getenv("DLOCK_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			e.Fatalf("DLOCK_SEED: %v", err)
		}
	}
	e.Logf("DLOCK_SEED=%d", s)
	return s
}

// oracle records the current leases, and the order in which requests were seen waiting.
type oracle struct {
	mu     sync.Mutex
	in     map[*dlock.Lease]want
	before map[string]map[string]bool // by label: those seen waiting ahead of it
	tokens map[string]dlock.Token     // by label: of exclusive holds
	last   dlock.Token                // of the last exclusive hold
}

// want is the mode and limit of a request.
type want struct {
	mode  driver.Mode
	limit int
}

// granted records that a lease was granted. A lease that is no longer trusted does not count as
// held. placed: the request cannot have lost its place while it waited.
func (o *oracle) granted(l *dlock.Lease, request want, label string, placed bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if !now.Before(l.Until()) { // it was short, and the machine has stalled since Lock returned
		return nil
	}
	limit, others := request.limit, 0
	for other, a := range o.in {
		if !now.Before(other.Until()) {
			continue
		}
		others++
		if request.mode == driver.Exclusive || a.mode == driver.Exclusive {
			return fmt.Errorf("%s lease %d is held together with %s lease %d", request.mode, l.Token(), a.mode, other.Token())
		}
		if a.limit > 0 && (limit == 0 || a.limit < limit) {
			limit = a.limit
		}
	}
	if limit > 0 && others >= limit {
		return fmt.Errorf("%d owners hold a semaphore of %d", others+1, limit)
	}
	o.in[l] = request
	if request.mode == driver.Exclusive && l.Token() != 0 {
		if l.Token() <= o.last {
			return fmt.Errorf("token %d came after %d", l.Token(), o.last)
		}
		o.last = l.Token()
		if placed {
			o.tokens[label] = l.Token()
		}
	}
	return nil
}

// released records that a lease is released.
func (o *oracle) released(l *dlock.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.in, l)
}

// waiting records the order of the waiters.
func (o *oracle) waiting(q driver.Queue) {
	o.mu.Lock()
	defer o.mu.Unlock()
	waiters := q.Waiters()
	for i, b := range waiters {
		if o.before[b.Label] == nil {
			o.before[b.Label] = map[string]bool{}
		}
		for _, a := range waiters[:i] {
			o.before[b.Label][a.Label] = true
		}
	}
}

// inOrder returns an error if two exclusive requests that waited were granted in the wrong order.
func (o *oracle) inOrder() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for b, ahead := range o.before {
		for a := range ahead {
			if ta, tb := o.tokens[a], o.tokens[b]; ta != 0 && tb != 0 && ta > tb {
				return fmt.Errorf("request %s waited ahead of %s and was granted after it: tokens %d and %d", a, b, ta, tb)
			}
		}
	}
	return nil
}

func storm(e *env) {
	for range size.Longer(1) {
		oneStorm(e)
	}
}

func oneStorm(e *env) {
	const goroutines, steps = 12, 20
	seed := e.seed()
	var tally hooksTally
	observe := dlock.Observe(tally.hooks())
	clients := []*dlock.Client{e.client(observe), e.client(observe), e.client(observe)}
	names, oracles := make([]string, 3), make([]*oracle, 3)
	for i := range names {
		names[i] = e.name()
		oracles[i] = &oracle{in: map[*dlock.Lease]want{}, before: map[string]map[string]bool{}, tokens: map[string]dlock.Token{}}
	}
	end := time.Now().Add(6 * time.Second)
	ctx, stop := context.WithCancel(e.ctx)
	var observer sync.WaitGroup
	defer observer.Wait()
	defer stop()
	if e.caps.Inspect && e.caps.Queue {
		observer.Go(func() {
			for i := 0; ctx.Err() == nil && time.Now().Before(end); i++ {
				if q, err := e.probe.Inspect(ctx, names[i%len(names)]); err == nil {
					oracles[i%len(names)].waiting(q)
				}
				pause(time.Millisecond)
			}
		})
	}
	e.strict().together(goroutines, func(ctx context.Context, g int) error {
		lots := rand.New(rand.NewPCG(seed, uint64(g)))
		for step := 0; step < steps && time.Now().Before(end); step++ {
			n := lots.IntN(len(names))
			v := e.draw(lots, clients[lots.IntN(len(clients))], names[n], n == 2, fmt.Sprintf("%d.%d", g, step))
			if err := v.visit(ctx, lots, oracles[n]); err != nil {
				return err
			}
		}
		return nil
	})
	stop()
	observer.Wait()
	for i, o := range oracles {
		if err := o.inOrder(); err != nil {
			// a waiter that stalls when its turn comes loses its place: then the run proves nothing
			e.Errorf("%v", err)
		}
		e.strict().becomes(names[i], 0, 0)
	}
	e.strict().until("the hook Ended was called for each hold", tally.allEnded)
	if err := tally.check(); err != nil {
		e.strict().Errorf("%v", err)
	}
}

// hooksTally counts the calls of hooks.
type hooksTally struct {
	mu    sync.Mutex
	locks []*lockTally
}

// lockTally counts the calls for one Lock.
type lockTally struct {
	op          dlock.LockOp
	done, ended int
	granted     bool
}

type lockTallyKey struct{}

func (h *hooksTally) hooks() dlock.Hooks {
	return dlock.Hooks{
		Lock: func(ctx context.Context, op dlock.LockOp) (context.Context, func(*dlock.Lease, error)) {
			l := &lockTally{op: op}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.locks = append(h.locks, l)
			return context.WithValue(ctx, lockTallyKey{}, l), func(lease *dlock.Lease, _ error) {
				h.mu.Lock()
				defer h.mu.Unlock()
				l.done++
				l.granted = lease != nil
			}
		},
		Ended: func(ctx context.Context, end dlock.HoldEnd) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if l, ok := ctx.Value(lockTallyKey{}).(*lockTally); ok {
				l.ended++
			}
		},
	}
}

// allEnded reports whether each hold that was granted has ended.
func (h *hooksTally) allEnded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.locks {
		if l.granted && l.ended == 0 {
			return false
		}
	}
	return true
}

// check returns an error unless done was called once for each Lock and Ended once for each hold.
func (h *hooksTally) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.locks {
		ends := 0
		if l.granted {
			ends = 1
		}
		if l.done != 1 || l.ended != ends {
			return fmt.Errorf("for a Lock (%+v, granted: %v) done was called %d times and Ended %d times", l.op, l.granted, l.done, l.ended)
		}
	}
	if len(h.locks) == 0 {
		return errors.New("the hook Lock was never called")
	}
	return nil
}

// visitor locks once.
type visitor struct {
	dlock.Mutex
	want
	label string // unique
	fixed bool
	ttl   time.Duration // if it is fixed
}

// draw makes a random visitor. The last name is a semaphore, the others are read-write locks.
func (e *env) draw(lots *rand.Rand, c *dlock.Client, name string, semaphore bool, label string) visitor {
	v := visitor{label: label, fixed: lots.IntN(30) == 0, ttl: e.shortTTL}
	opts := []dlock.LockOption{dlock.Label(label)}
	if v.fixed {
		opts = append(opts, dlock.FixedLease(e.shortTTL))
	}
	switch {
	case semaphore && e.caps.Semaphores:
		v.mode, v.limit = driver.Shared, 2+lots.IntN(2)
		v.Mutex = c.Semaphore(name, v.limit, opts...)
	case e.caps.Shared && lots.IntN(2) == 0:
		v.mode = driver.Shared
		v.Mutex = c.RWMutex(name, opts...).Read()
	default:
		v.Mutex = c.Mutex(name, opts...)
	}
	return v
}

// visit locks in a random way, holds the lock for a moment, and releases it or, if it is fixed,
// lets it expire.
func (v visitor) visit(ctx context.Context, lots *rand.Rand, o *oracle) error {
	moment := func() time.Duration { return time.Duration(lots.IntN(2000)) * time.Microsecond }
	lock := v.Lock
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	switch lots.IntN(4) {
	case 0:
		lock = v.TryLock
	case 1:
		defer time.AfterFunc(3*moment(), cancel).Stop()
	}
	start := time.Now()
	l, err := lock(waiting)
	took := time.Since(start)
	if err != nil {
		if errors.Is(err, dlock.ErrHeld) || waiting.Err() != nil && ctx.Err() == nil {
			return nil
		}
		// the service stalled for too long for such a short TTL
		if v.fixed && (errors.Is(err, dlock.ErrLost) || took >= max(v.ttl/10, minStall)) {
			return nil
		}
		return err
	}
	if err := o.granted(l, v.want, v.label, !v.fixed || took < v.ttl); err != nil {
		return err
	}
	pause(moment())
	if v.fixed {
		select {
		case <-l.Lost():
		case <-ctx.Done():
		}
	}
	o.released(l)
	if err := l.Unlock(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
		return err
	}
	return nil
}
