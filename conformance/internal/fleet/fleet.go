// Package fleet moves workers from one backend to another while they lock, and records which of
// them is in.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// Site is a place where locks are.
type Site struct {
	Name string
	Open func(conformance.T) driver.Backend // a new client, which the fleet closes
}

// Phase is what a worker locks on.
type Phase int

// The phases of a move.
const (
	OnlyOld Phase = iota // the old site
	Both                 // both sites
	OnlyNew              // the new site
)

// String names the phase.
func (p Phase) String() string { return [...]string{"old", "both", "new"}[p] }

// Fleet is a fleet of workers that all lock one name.
type Fleet struct {
	t        conformance.T
	old, new Site
	name     string
	ttl      time.Duration
	workers  []*Worker
	Record   *Recorder
}

// New returns a fleet without workers. Everything is closed at the end of the test.
func New(t conformance.T, old, new Site, ttl time.Duration) *Fleet {
	f := &Fleet{t: t, old: old, new: new, name: "fleet-" + driver.NewID().String(), ttl: ttl, Record: &Recorder{}}
	t.Cleanup(func() {
		for _, w := range f.workers {
			w.end()
		}
	})
	return f
}

// Worker is a client that locks until it is stopped or killed.
type Worker struct {
	f      *Fleet
	label  string
	client *dlock.Client
	sides  []*conformance.FaultInjector
	heal   []func()
	stop   context.CancelFunc
	done   chan struct{}
	once   sync.Once
}

// Start starts a worker of the phase.
func (f *Fleet) Start(phase Phase) *Worker {
	f.t.Helper()
	w := &Worker{f: f, label: fmt.Sprintf("%d of phase %s", len(f.workers), phase), done: make(chan struct{})}
	client := func(s Site, opts ...dlock.Option) *dlock.Client {
		side := conformance.NewFaultInjector(s.Open(f.t))
		w.sides = append(w.sides, side)
		c, err := dlock.New(side, append(opts, dlock.TTL(f.ttl), dlock.Label(w.label))...)
		if err != nil {
			f.t.Fatalf("a worker of phase %s: %v", phase, err)
		}
		return c
	}
	switch phase {
	case OnlyOld:
		w.client = client(f.old)
	case OnlyNew:
		w.client = client(f.new)
	default:
		w.client = client(f.new, dlock.Also(client(f.old, dlock.Identity("old"))), dlock.Identity("new"))
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	f.workers = append(f.workers, w)
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.section(ctx)
		}
	}()
	return w
}

// section locks in one of several ways, and is in for a moment.
func (w *Worker) section(ctx context.Context) {
	m := w.client.Mutex(w.f.name)
	var l *dlock.Lease
	var err error
	switch rand.N(8) {
	case 0:
		l, err = m.TryLock(ctx)
	case 1: // a wait that is soon cancelled
		soon, cancel := context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		l, err = m.Lock(soon)
		cancel()
	default:
		l, err = m.Lock(ctx)
	}
	if err != nil {
		w.f.Record.failed(err)
		rest(ctx, 20*time.Millisecond)
		return
	}
	if w.f.Record.enter(w, l) {
		rest(ctx, rand.N(2*time.Millisecond))
		w.f.Record.leave(w)
	}
	l.Unlock(ctx)
	rest(ctx, rand.N(10*time.Millisecond))
}

func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Stop stops the worker as a process that ends in order.
func (w *Worker) Stop() {
	w.once.Do(func() {
		w.stop()
		<-w.done
		w.client.Close()
	})
}

// Kill stops the worker as a process that is killed: nothing that it does reaches a backend any
// more, and what it holds expires.
func (w *Worker) Kill() {
	w.once.Do(func() {
		w.f.Record.kill(w)
		for _, s := range w.sides {
			w.heal = append(w.heal, s.Partition())
		}
		w.stop()
	})
}

// end removes what is left of the worker.
func (w *Worker) end() {
	w.Stop()
	for _, heal := range w.heal {
		heal()
	}
	<-w.done
	w.client.Close()
}

// Runs blocks until the worker's fleet has had n more sections.
func (f *Fleet) Runs(n int) {
	f.t.Helper()
	from := f.Record.Sections()
	await.Within(f.t, await.Patience, fmt.Sprintf("%d more sections of %s to %s (%v)", n, f.old.Name, f.new.Name, f.Record.Failure()), func() bool {
		return f.Record.Sections() >= from+n || len(f.Record.Violations()) > 0
	})
}

// Move replaces the workers one by one by those of another phase, and lets all of them lock in
// between. Every second one is killed.
func (f *Fleet) Move(ws []*Worker, to Phase, sections int) {
	f.t.Helper()
	for i := range ws {
		if i%2 == 0 {
			ws[i].Kill()
		} else {
			ws[i].Stop()
		}
		ws[i] = f.Start(to)
		f.Runs(sections)
	}
}

// Recorder records which worker is in.
type Recorder struct {
	mu         sync.Mutex
	in         map[*Worker]*dlock.Lease
	dead       map[*Worker]bool
	last       dlock.Token
	sections   int
	violations []error
	shrunk     int // tokens that were not greater than the one before
	failure    error
}

// enter records that a worker is in, unless it was killed.
func (r *Recorder) enter(w *Worker, l *dlock.Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead[w] || l.Err() != nil {
		return false
	}
	if r.in == nil {
		r.in = map[*Worker]*dlock.Lease{}
	}
	for other, held := range r.in {
		if time.Now().Before(held.Until()) {
			r.violations = append(r.violations, fmt.Errorf("worker %s is in together with worker %s", w.label, other.label))
		}
	}
	if l.Token() <= r.last {
		r.shrunk++
	}
	r.last = l.Token()
	r.in[w] = l
	r.sections++
	return true
}

func (r *Recorder) leave(w *Worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.in, w)
}

// kill records that a worker is out for good.
func (r *Recorder) kill(w *Worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead == nil {
		r.dead = map[*Worker]bool{}
	}
	r.dead[w] = true
	delete(r.in, w)
}

// failed records the error of a lock, for the case that there is no progress.
func (r *Recorder) failed(err error) {
	if errors.Is(err, dlock.ErrHeld) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
}

// Sections returns how often a worker was in.
func (r *Recorder) Sections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sections
}

// Violations returns when two were in.
func (r *Recorder) Violations() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.violations
}

// Shrunk returns how many tokens were not greater than the one before.
func (r *Recorder) Shrunk() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shrunk
}

// Failure returns the last error of a lock that was neither held nor cancelled.
func (r *Recorder) Failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// Phases moves a fleet of three from old to new, and back if back is set, and fails the test if two
// were in.
func Phases(t conformance.T, old, new Site, ttl time.Duration, sections int, back bool) *Fleet {
	t.Helper()
	f := New(t, old, new, ttl)
	var ws []*Worker
	for range 3 {
		ws = append(ws, f.Start(OnlyOld))
	}
	f.Runs(sections)
	steps := []Phase{Both, OnlyNew}
	if back {
		steps = append(steps, Both, OnlyOld)
	}
	for i, p := range steps {
		if i%2 == 1 { // what the last process of the phase before held has expired
			rest(t.Context(), f.ttl+f.ttl/2)
		}
		f.Move(ws, p, sections)
	}
	for _, err := range f.Record.Violations() {
		t.Errorf("%s to %s: %v", old.Name, new.Name, err)
	}
	return f
}
