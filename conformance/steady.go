package conformance

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// standstill says how long the machine or the service may stand still in a law before its leases
// may be lost: a tenth of their TTL, which is all that a driver of several servers may leave each
// of them. Less than noise is none.
type standstill func(*env) time.Duration

const noise = 50 * time.Millisecond

var (
	keepsSteady standstill = func(e *env) time.Duration { return max(e.steady/10, noise) }
	keepsShort  standstill = func(e *env) time.Duration { return max(e.ttl/10, noise) }
)

// rounds runs a law that needs leases of a short TTL to be kept. No driver keeps one while the
// machine or the service stands still: a failure after that was seen proves nothing, and the law
// begins anew with other names and twice the TTLs. What fails in the last round has failed, and so
// has what fails where nothing stood still.
func (e *env) rounds(limit standstill, law func(*env)) {
	e.Helper()
	const most = 4
	for i := range most {
		again := *e
		again.ttl, again.steady = e.bounded(e.ttl<<i), e.bounded(e.steady<<i)
		again.patience += 3 * (again.ttl - e.ttl)
		again.long = e.bounded(e.long + 12*(again.ttl-e.ttl))
		r := &round{T: e.T, limit: limit(&again)}
		again.T = r
		if i < most-1 {
			r.watch = e.watchPace(r.limit)
		}
		if r.run(func() { law(&again) }) {
			return
		}
	}
}

// bounded returns the TTL, or the greatest that there is.
func (e *env) bounded(ttl time.Duration) time.Duration {
	if m := e.caps.MaxTTL; m > 0 {
		return min(ttl, m)
	}
	return ttl
}

// round is the test of one round: a failure ends it without a verdict if something stood still.
type round struct {
	T
	limit time.Duration
	watch *pace // nil: every failure counts
	void  atomic.Bool
	over  atomic.Bool
}

// run runs f to its end, and reports whether it has a verdict.
func (r *round) run(f func()) bool {
	done, whole := make(chan struct{}), false
	go func() { // a round may end without the law
		defer close(done)
		f()
		whole = true
	}()
	<-done
	r.over.Store(true)
	if r.watch != nil {
		r.watch.stop()
	}
	if r.void.Load() && !r.T.Failed() {
		return false
	}
	if !whole {
		// what was excused ended the law; the test, which failed all the same, has not ended yet
		if r.void.Load() {
			r.T.Fatalf("the law ended there")
		}
		runtime.Goexit() // the test has said why
	}
	return true
}

// excused reports whether a failure proves nothing.
func (r *round) excused(format string, args []any) bool {
	r.T.Helper()
	if r.watch == nil || r.over.Load() {
		return false
	}
	if stood := r.watch.stood(); stood >= r.limit {
		r.void.Store(true)
		r.T.Logf("the machine or the service stood still for %s, so that this proves nothing; once more: "+format, append([]any{stood}, args...)...)
	}
	return r.void.Load()
}

// Errorf implements [T].
func (r *round) Errorf(format string, args ...any) {
	r.T.Helper()
	if !r.excused(format, args) {
		r.T.Errorf(format, args...)
	}
}

// Fatalf implements [T].
func (r *round) Fatalf(format string, args ...any) {
	r.T.Helper()
	if r.excused(format, args) {
		runtime.Goexit()
	}
	r.T.Fatalf(format, args...)
}

// strict is for what no standstill excuses: it fails the law in any round.
func (e *env) strict() *env {
	s := *e
	if r, ok := e.T.(*round); ok {
		s.T = r.T
	}
	return &s
}

// pace watches for how long at most the process was not served by its machine, or a lock not by its
// service.
type pace struct {
	stop func() // returns when it is over

	mu    sync.Mutex
	beat  time.Time // when the process was seen at work last
	asked time.Time // when the service was asked what it did not answer yet; zero: nothing
	most  time.Duration
}

func (e *env) watchPace(limit time.Duration) *pace {
	ctx, cancel := context.WithCancel(e.ctx)
	var watches sync.WaitGroup
	p := &pace{beat: time.Now()}
	p.stop = func() {
		cancel()
		e.ends("Acquire or Release whose context ended", watches.Wait)
	}
	rest := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	watches.Go(func() {
		for ctx.Err() == nil {
			rest(max(limit/20, 2*time.Millisecond))
			p.stood()
			p.mu.Lock()
			p.beat = time.Now()
			p.mu.Unlock()
		}
	})
	d := &direct{e: e, Backend: e.probe, id: driver.NewID()}
	watches.Go(func() {
		for ctx.Err() == nil {
			r := d.ask(e.name())
			p.ask(true)
			_, err := d.Acquire(ctx, r)
			if err == nil {
				p.ask(true)
				err = d.Release(ctx, r)
			}
			p.ask(false)
			if err != nil && ctx.Err() == nil { // that is no service either
				p.note(limit)
			}
			rest(limit)
		}
	})
	return p
}

// ask takes note that a call to the service begins or ends.
func (p *pace) ask(begins bool) {
	p.stood()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = time.Time{}
	if begins {
		p.asked = time.Now()
	}
}

func (p *pace) note(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = max(p.most, d)
}

// stood returns the longest standstill so far, one that lasts included.
func (p *pace) stood() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = max(p.most, time.Since(p.beat))
	if !p.asked.IsZero() {
		p.most = max(p.most, time.Since(p.asked))
	}
	return p.most
}

// unserved begins to measure for how long the machine does not serve the process; total ends that,
// and returns how much of it was before end.
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
			case <-e.ctx.Done(): // nobody asked
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
