package conformance

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/stall"
)

// While the machine or the service stalls, no driver can keep a lease of a short TTL or be prompt.
// The machine stalls if it does not run the test's process; the service, if it does not answer. So
// a law about such leases, or about times, has a stall tolerance, and a failure after a longer
// stall proves nothing. There is no other excuse: no law adds the time of a stall to its bounds.

// stallTolerance returns the shortest stall after which a failure of a law proves nothing. If
// leases may be lost it is a tenth of their TTL, because a driver of several servers may leave no
// more to each of them.
type stallTolerance func(*env) time.Duration

var (
	tenthOfShortTTL   stallTolerance = func(e *env) time.Duration { return max(e.shortTTL/10, minStall) }
	tenthOfRenewedTTL stallTolerance = func(e *env) time.Duration { return max(e.renewedTTL/10, minStall) }
	tenthOfLongTTL    stallTolerance = func(e *env) time.Duration { return max(e.longTTL/10, minStall) } // which the backend may limit
)

// The tolerances of laws about times: within a second or more, within 100 ms, and within the last
// part of a TTL, in which a lease is not trusted.
var (
	promptly stallTolerance = func(*env) time.Duration { return 2 * minStall }
	atOnce   stallTolerance = func(*env) time.Duration { return minStall }
	inMargin stallTolerance = func(e *env) time.Duration { return max(e.renewedTTL/20, minStall) }
)

// minStall is the shortest stall that counts: less is the usual noise of a machine.
const minStall = 50 * time.Millisecond

// repeatAfterStalls runs a law until a run has a verdict. A run that failed after a stall has none:
// the law is run again with other names and twice the TTLs. A failure in the last run always
// counts, and so does a failure without a stall.
func (e *env) repeatAfterStalls(tolerance stallTolerance, law func(*env)) {
	e.Helper()
	const runs = 4
	for i := range runs {
		again := *e
		again.shortTTL, again.renewedTTL = e.bounded(e.shortTTL<<i), e.bounded(e.renewedTTL<<i)
		again.patience += 3 * (again.shortTTL - e.shortTTL)
		again.longTTL = e.bounded(e.longTTL + 12*(again.shortTTL-e.shortTTL))
		r := &lawRun{T: e.T, e: e}
		again.T = r
		if i < runs-1 {
			r.Began, r.Monitor = time.Now(), e.monitorStalls(tolerance(&again))
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
	stall.Run
	e    *env
	over atomic.Bool // the run has ended: a failure after that, as in a clean-up, counts
}

// run calls f, and reports whether the run has a verdict.
func (r *lawRun) run(f func()) bool {
	done, whole, panicked := make(chan struct{}), false, ""
	go func() { // Fatalf ends this goroutine and not the law
		defer close(done)
		defer func() { // a panic would end all other tests too
			if p := recover(); p != nil {
				panicked = fmt.Sprintf("the law panics: %v\n%s", p, debug.Stack())
			}
		}()
		f()
		whole = true
	}()
	<-done
	r.over.Store(true)
	if r.Monitor != nil {
		r.e.ends("Acquire or Release whose context ended", r.Monitor.Stop)
	}
	if panicked != "" {
		r.T.Fatalf("%s", panicked)
	}
	if r.Void() && !r.T.Failed() {
		return false
	}
	if !whole {
		// an excused Fatalf ended f, but another failure counts, and the test has to end
		if r.Void() {
			r.T.Fatalf("the law ended at the failure above")
		}
		runtime.Goexit() // the failure is reported already
	}
	return true
}

// excused reports whether a failure proves nothing, and logs it if so.
func (r *lawRun) excused(format string, args []any) bool {
	r.T.Helper()
	return !r.over.Load() && r.Excuses(r.T, fmt.Sprintf(format, args...))
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

// strict returns an env for failures that no stall excuses: its Errorf and Fatalf always count.
func (e *env) strict() *env {
	s := *e
	if r, ok := e.T.(*lawRun); ok {
		s.T = r.T
	}
	return &s
}

// monitorStalls measures stalls of the machine, and those of the service with a client of its own.
func (e *env) monitorStalls(tolerance time.Duration) *stall.Monitor {
	m := stall.NewMonitor(e.ctx, tolerance)
	d := e.directOn(e.probe)
	m.Watch(tolerance/2, func(ctx context.Context, answered func()) {
		r := d.ask(e.name())
		_, err := d.Acquire(ctx, r)
		if err == nil {
			answered()
			err = d.Release(ctx, r)
		}
		if err != nil && ctx.Err() == nil { // a failing service is as bad as one that stalls
			m.Failed()
		}
		answered()
	})
	return m
}
