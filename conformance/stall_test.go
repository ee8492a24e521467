package conformance

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// stalling is a service that stalls for a while in each Acquire.
type stalling struct {
	driver.Backend
	stalls time.Duration
}

func (s stalling) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	pause(s.stalls)
	return s.Backend.Acquire(ctx, r)
}

func TestALawRunsAgainOnlyAfterAStall(t *testing.T) {
	const ttl = 10 * time.Second
	fatal := func(e *env) { e.Fatalf("a breach") }
	fails := func(e *env) { e.Errorf("a breach") }
	strict := func(e *env) { e.strict().Fatalf("a breach") }
	both := func(e *env) { e.strict().Errorf("a leak"); e.Fatalf("a breach") }
	panics := func(*env) { panic("out of range") }
	sound := func(*env) {}
	for _, c := range []struct {
		what   string
		stalls time.Duration
		says   []func(*env) // in each run; the last one also in all that follow
		runs   int
		failed bool
	}{
		{"a service that goes on", ttl / 100, []func(*env){fatal}, 1, true},
		{"a service that goes on, and an error", ttl / 100, []func(*env){fails}, 1, true},
		{"a sound driver", ttl / 2, []func(*env){sound}, 1, false},
		{"a failure after a stall", ttl / 2, []func(*env){fatal, sound}, 2, false},
		{"an error after a stall", ttl / 2, []func(*env){fails, sound}, 2, false},
		{"a broken driver on a service that stalls", ttl / 2, []func(*env){fatal}, 4, true},
		{"a failure that no stall excuses", ttl / 2, []func(*env){strict, sound}, 1, true},
		{"a failure that no stall excuses, and one that is excused", ttl / 2, []func(*env){both, sound}, 1, true},
		{"a law that panics", ttl / 2, []func(*env){panics, sound}, 1, true},
		{"a failure that no stall excuses, in the second run", ttl / 2, []func(*env){fails, strict, sound}, 2, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{name: c.what}
				r.ctx, r.cancel = context.WithCancel(context.Background())
				s := newToy(none)
				h := Harness{Open: func(T) driver.Backend { return stalling{s.open(), c.stalls} }, TTL: ttl}
				var ttls []time.Duration
				l := Law{Name: c.what, stall: tenthOfShortTTL, run: func(e *env) {
					pause(ttl) // the stall has come
					say := c.says[min(len(ttls), len(c.says)-1)]
					ttls = append(ttls, e.shortTTL)
					say(e)
				}}
				returned := false
				alone(func() { l.Run(r, h); returned = true })
				if !returned && !r.ended {
					t.Errorf("the law ended in a way that package testing does not allow:\n%s", r)
				}
				r.cancel()
				for _, f := range r.cleanups {
					alone(f)
				}
				close(s.end)
				pause(10 * time.Minute)
				if len(ttls) != c.runs || r.failed != c.failed {
					t.Errorf("it ran with the TTLs %s and failed %t; want %d runs and %t:\n%s", ttls, r.failed, c.runs, c.failed, r)
				}
				for i, got := range ttls {
					if got != ttl<<i {
						t.Errorf("run %d has the TTL %s", i, got)
					}
				}
			})
		})
	}
}

// stuck is a service that answers no call while a law says so.
type stuck struct {
	driver.Backend
	now *atomic.Bool
}

func (s stuck) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for s.now.Load() && ctx.Err() == nil {
		pause(time.Millisecond)
	}
	return s.Backend.Acquire(ctx, r)
}

// TestAStallBetweenTwoChecks: a law that fails after a stall as long as the tolerance runs again,
// whenever the stall began.
func TestAStallBetweenTwoChecks(t *testing.T) {
	const ttl, phases = 10 * time.Second, 20
	for phase := range phases {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{name: "stuck"}
			r.ctx, r.cancel = context.WithCancel(context.Background())
			s, now, runs := newToy(none), new(atomic.Bool), 0
			h := Harness{Open: func(T) driver.Backend { return stuck{s.open(), now} }, TTL: ttl}
			l := Law{Name: "stuck", stall: tenthOfShortTTL, run: func(e *env) {
				if runs++; runs > 1 {
					return
				}
				tolerance := tenthOfShortTTL(e)
				pause(3*tolerance + tolerance*time.Duration(phase)/phases)
				now.Store(true)
				pause(tolerance)
				now.Store(false)
				e.Fatalf("a breach")
			}}
			alone(func() { l.Run(r, h) })
			r.cancel()
			for _, f := range r.cleanups {
				alone(f)
			}
			close(s.end)
			pause(10 * time.Minute)
			if runs != 2 || r.failed {
				t.Errorf("phase %d: %d runs, failed %t:\n%s", phase, runs, r.failed, r)
			}
		})
	}
}

// TestNoStallExcusesAFaultForEver: if the service stalls all the time, a law about times still
// finds its fault, in the last run, which always counts.
func TestNoStallExcusesAFaultForEver(t *testing.T) {
	for name, f := range map[string]fault{
		"cancel-prompt": slowCancel, "cancel-cut-off": slowOffLine, "noise": noiseDelays, "break-force-known": forceSlow,
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range []fault{f, none} {
				l, opened := lawOf(t, name), 0
				synctest.Test(t, func(t *testing.T) {
					r := &recorder{name: name}
					r.ctx, r.cancel = context.WithCancel(context.Background())
					s := newToy(f)
					h := s.harness()
					open := h.Open
					h.Open = func(t T) driver.Backend {
						if opened++; opened == 1 { // the client that measures stalls
							return toyThatStalls{open(t).(*toyClient)}
						}
						return open(t)
					}
					r.record(l, h)
					close(s.end)
					pause(time.Minute)
					if excused := strings.Count(r.String(), "proves nothing"); r.failed != (f != none) || r.failed && excused < 3 {
						t.Errorf("on a toy that %s it failed %t, and %d failures were excused:\n%s", f, r.failed, excused, r)
					}
				})
			}
		})
	}
}

// toyThatStalls is a client whose answers are a second late.
type toyThatStalls struct{ *toyClient }

func (s toyThatStalls) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	pause(time.Second)
	return s.toyClient.Acquire(ctx, r)
}
