package conformance

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// No driver keeps a lease of a short TTL while the machine or the service stalls: the machine does
// not serve the test's process, or the service answers nobody. So a law that keeps such leases has
// a stall tolerance, and a failure after a longer stall proves nothing.

// stallTolerance returns the shortest stall after which leases of a law may be lost. It is a tenth
// of their TTL, which is all that a driver of several servers may leave each of them.
type stallTolerance func(*env) time.Duration

var (
	tenthOfShortTTL   stallTolerance = func(e *env) time.Duration { return max(e.shortTTL/10, minStall) }
	tenthOfRenewedTTL stallTolerance = func(e *env) time.Duration { return max(e.renewedTTL/10, minStall) }
	tenthOfLongTTL    stallTolerance = func(e *env) time.Duration { return max(e.longTTL/10, minStall) } // which the backend may bound
)

// minStall is the least that counts as a stall: less is the usual noise of a machine.
const minStall = 50 * time.Millisecond

// repeatAfterStalls runs a law until a run has a verdict: a run that failed after a stall has none,
// and the law is run again with other names and twice the TTLs. A failure in the last run counts in
// any case, and so does a failure without a stall.
func (e *env) repeatAfterStalls(tolerance stallTolerance, law func(*env)) {
	e.Helper()
	const runs = 4
	for i := range runs {
		again := *e
		again.shortTTL, again.renewedTTL = e.bounded(e.shortTTL<<i), e.bounded(e.renewedTTL<<i)
		again.patience += 3 * (again.shortTTL - e.shortTTL)
		again.longTTL = e.bounded(e.longTTL + 12*(again.shortTTL-e.shortTTL))
		r := &lawRun{T: e.T, tolerance: tolerance(&again)}
		again.T = r
		if i < runs-1 {
			r.monitor = e.monitorStalls(r.tolerance)
		}
		if r.run(func() { law(&again) }) {
			return
		}
	}
}

// bounded returns the TTL, or the backend's greatest if that is less.
func (e *env) bounded(ttl time.Duration) time.Duration {
	if m := e.caps.MaxTTL; m > 0 {
		return min(ttl, m)
	}
	return ttl
}

// lawRun is the T of one run of a law. A failure after a stall ends the run, and is not passed on.
type lawRun struct {
	T
	tolerance time.Duration
	monitor   *stallMonitor // nil: every failure counts
	void      atomic.Bool   // it failed after a stall: it proves nothing
	over      atomic.Bool
}

// run calls f, and reports whether the run has a verdict.
func (r *lawRun) run(f func()) bool {
	done, whole, panicked := make(chan struct{}), false, ""
	go func() { // Fatalf ends this goroutine, and not the law
		defer close(done)
		defer func() { // it would end the tests of all others too
			if p := recover(); p != nil {
				panicked = fmt.Sprintf("the law panics: %v\n%s", p, debug.Stack())
			}
		}()
		f()
		whole = true
	}()
	<-done
	r.over.Store(true)
	if r.monitor != nil {
		r.monitor.stop()
	}
	if panicked != "" {
		r.T.Fatalf("%s", panicked)
	}
	if r.void.Load() && !r.T.Failed() {
		return false
	}
	if !whole {
		// an excused Fatalf ended f, but the test has failed otherwise and has not ended yet
		if r.void.Load() {
			r.T.Fatalf("the law ended there")
		}
		runtime.Goexit() // the test has said why
	}
	return true
}

// excused reports whether a failure proves nothing, and logs it if so.
func (r *lawRun) excused(format string, args []any) bool {
	r.T.Helper()
	if r.monitor == nil || r.over.Load() {
		return false
	}
	if stall := r.monitor.longest(); stall >= r.tolerance {
		r.void.Store(true)
		r.T.Logf("the machine or the service stalled for %s, so that this proves nothing; once more: "+format, append([]any{stall}, args...)...)
	}
	return r.void.Load()
}

// Errorf implements [T].
func (r *lawRun) Errorf(format string, args ...any) {
	r.T.Helper()
	if !r.excused(format, args) {
		r.T.Errorf(format, args...)
	}
}

// Fatalf implements [T].
func (r *lawRun) Fatalf(format string, args ...any) {
	r.T.Helper()
	if r.excused(format, args) {
		runtime.Goexit()
	}
	r.T.Fatalf(format, args...)
}

// strict is for what no stall excuses: its Errorf and Fatalf fail the law in any run.
func (e *env) strict() *env {
	s := *e
	if r, ok := e.T.(*lawRun); ok {
		s.T = r.T
	}
	return &s
}

// stallMonitor measures the longest stall: the longest time in which the machine did not serve the
// process, or the service did not answer a call.
type stallMonitor struct {
	stop func() // returns when the monitor has ended

	mu       sync.Mutex
	awake    time.Time // when the process was seen running last
	asks     bool      // a call to the service is under way
	answered time.Time // when the service answered last: a stall may have begun then
	maximum  time.Duration
}

func (e *env) monitorStalls(tolerance time.Duration) *stallMonitor {
	ctx, cancel := context.WithCancel(e.ctx)
	var monitors sync.WaitGroup
	m := &stallMonitor{awake: time.Now(), answered: time.Now()}
	m.stop = func() {
		cancel()
		e.ends("Acquire or Release whose context ended", monitors.Wait)
	}
	rest := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	monitors.Go(func() { // the machine
		for ctx.Err() == nil {
			rest(max(tolerance/20, 2*time.Millisecond))
			m.longest()
			m.mu.Lock()
			m.awake = time.Now()
			m.mu.Unlock()
		}
	})
	d := &direct{e: e, Backend: e.probe, id: driver.NewID()}
	monitors.Go(func() { // the service
		for ctx.Err() == nil {
			r := d.ask(e.name())
			m.begins()
			_, err := d.Acquire(ctx, r)
			if err == nil {
				m.answers()
				m.begins()
				err = d.Release(ctx, r)
			}
			m.answers()
			if err != nil && ctx.Err() == nil { // a service that fails serves nobody either
				m.record(tolerance)
			}
			rest(tolerance / 2) // less than a stall, since each is part of what is measured
		}
	})
	return m
}

// begins records that a call to the service begins.
func (m *stallMonitor) begins() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks = true
}

// answers records that it was answered.
func (m *stallMonitor) answers() {
	m.longest()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks, m.answered = false, time.Now()
}

func (m *stallMonitor) record(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.maximum = max(m.maximum, d)
}

// longest returns the longest stall so far, one that lasts included.
func (m *stallMonitor) longest() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.maximum = max(m.maximum, time.Since(m.awake))
	if m.asks {
		m.maximum = max(m.maximum, time.Since(m.answered))
	}
	return m.maximum
}

// unserved begins to measure for how long the machine does not serve the process. total ends the
// measurement, and returns how much of that time was before end.
func (e *env) unserved() (total func(end time.Time) time.Duration) {
	const beat, late = 2 * time.Millisecond, 20 * time.Millisecond
	type gap struct{ from, to time.Time }
	quit, found := make(chan struct{}), make(chan []gap, 1)
	go func() {
		var gaps []gap
		for {
			g := gap{from: time.Now().Add(beat)}
			pause(beat)
			if g.to = time.Now(); g.to.Sub(g.from) > late {
				gaps = append(gaps, g)
			}
			select {
			case <-quit:
				found <- gaps
				return
			case <-e.ctx.Done(): // the law ended without asking
				found <- gaps
				return
			default:
			}
		}
	}()
	return func(end time.Time) (sum time.Duration) {
		close(quit)
		for _, g := range <-found {
			if g.to.After(end) {
				g.to = end
			}
			sum += max(g.to.Sub(g.from), 0)
		}
		return sum
	}
}
