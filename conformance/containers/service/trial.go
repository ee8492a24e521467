package service

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/stall"
)

// A server of a busy machine stands still for seconds at times, and its clients abandon calls. What
// a test expects of a working server does not hold then. So a test that is made of parts runs each
// as a trial: one that failed after the server stood still proves nothing, and is run again.

const (
	// standstill is for how long a server may stand still before a failure proves nothing: half of
	// the three seconds after which drivers abandon a statement.
	standstill = 1500 * time.Millisecond
	askPause   = 200 * time.Millisecond
	askBound   = 10 * time.Second // a hanging connection does not mean that the server stands still
	trials     = 3                // the last one counts in any case
)

// Monitor measures for how long a server stands still, as a client other than the driver sees it:
// the server does not answer, or the machine does not run the process of the tests.
type Monitor struct{ *stall.Monitor }

// NewMonitor measures how servers answer until Stop. If one of them stands still, all count as
// standing still.
func NewMonitor(servers ...*Server) *Monitor {
	m := &Monitor{stall.NewMonitor(context.Background(), standstill)}
	for _, s := range servers {
		m.Watch(askPause, func(ctx context.Context, answered func()) {
			ctx, end := context.WithTimeout(ctx, askBound)
			defer end()
			if _, err := s.Kind.Ask(ctx, s.URL); err == nil {
				answered()
			}
		})
	}
	return m
}

// Trial is the test of one run of a part. Its failures are those of the part, unless the server
// stood still before: then they are logged, and the run ends as skipped.
type Trial struct {
	testing.TB
	t   *testing.T
	run *stall.Run // its parts have the same one; nil: every failure counts
}

// Try runs a part as a subtest, and again until a run has a verdict.
func (m *Monitor) Try(t *testing.T, name string, part func(*Trial)) {
	t.Helper()
	for i := 1; ; i++ {
		sub := name
		if i > 1 {
			sub = fmt.Sprint(name, ", try ", i)
		}
		run := &Trial{}
		if i < trials {
			run.run = &stall.Run{Monitor: m.Monitor, Began: time.Now()}
		}
		ran := false
		passed := t.Run(sub, func(t *testing.T) {
			ran = true
			run.is(t, part)
		})
		if i > 1 && !ran {
			t.Errorf("%s is not one of the tests that -run selects, and %s has no verdict without it", sub, name)
		}
		if !passed || !run.Void() {
			return
		}
	}
}

// is runs the part, as the test t.
func (r *Trial) is(t *testing.T, part func(*Trial)) {
	r.TB, r.t = t, t
	part(r)
	if r.Void() && !t.Failed() {
		t.SkipNow()
	}
}

// Run runs a part of the part as a subtest, whose failures count as the part's do.
func (r *Trial) Run(name string, f func(*Trial)) {
	r.Helper()
	r.t.Run(name, func(t *testing.T) { (&Trial{run: r.run}).is(t, f) })
}

// Void reports whether a failure was excused.
func (r *Trial) Void() bool { return r.run.Void() }

// Stalled records that the part found the server, or the machine, too slow for what it expects.
func (r *Trial) Stalled() {
	if r.run != nil {
		r.run.Monitor.Failed()
	}
}

// Error implements [testing.TB].
func (r *Trial) Error(args ...any) {
	r.TB.Helper()
	if text := fmt.Sprint(args...); !r.run.Excuses(r.TB, text) {
		r.TB.Error(text)
	}
}

// Errorf implements [testing.TB].
func (r *Trial) Errorf(format string, args ...any) {
	r.TB.Helper()
	r.Error(fmt.Sprintf(format, args...))
}

// Fatal implements [testing.TB].
func (r *Trial) Fatal(args ...any) {
	r.TB.Helper()
	text := fmt.Sprint(args...)
	if r.run.Excuses(r.TB, text) {
		r.TB.SkipNow()
	}
	r.TB.Fatal(text)
}

// Fatalf implements [testing.TB].
func (r *Trial) Fatalf(format string, args ...any) {
	r.TB.Helper()
	r.Fatal(fmt.Sprintf(format, args...))
}

// Failed implements [testing.TB].
func (r *Trial) Failed() bool { return r.TB.Failed() || r.Void() }

// FailNow implements [testing.TB].
func (r *Trial) FailNow() {
	if r.Void() {
		r.TB.SkipNow()
	}
	r.TB.FailNow()
}

// Strict returns the test for failures that no standstill of a server excuses, such as two holders
// of one lock.
func Strict(t testing.TB) testing.TB {
	if r, is := t.(*Trial); is {
		return r.TB
	}
	return t
}
