package service

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// A server of a busy machine stands still for seconds at times, and its clients give calls up. What
// a test expects of a server that serves it does not hold then. So a test that is made of parts
// runs each as a trial: one that failed after the server stood still proves nothing, and is run
// again.

const (
	// standstill is for how long a server may stand still before a failure proves nothing: half of
	// the three seconds after which drivers give a statement up.
	standstill = 1500 * time.Millisecond
	askPause   = 200 * time.Millisecond
	askBound   = 10 * time.Second // a connection that hangs is no server that stands still
	trials     = 3                // the last one counts in any case
)

// Monitor measures for how long a server stands still, as somebody sees it who is not the driver:
// it does not answer, or the machine does not serve the process of the tests.
type Monitor struct {
	stop func()

	mu       sync.Mutex
	answered map[*Server]time.Time // when each server answered last
	stalls   []standsFrom          // that are over
}

// standsFrom is a time in which a server did not answer.
type standsFrom struct{ from, to time.Time }

// NewMonitor measures how servers answer until Stop: if one of them stands still, they do.
func NewMonitor(servers ...*Server) *Monitor {
	ctx, cancel := context.WithCancel(context.Background())
	var asks sync.WaitGroup
	m := &Monitor{answered: map[*Server]time.Time{}, stop: func() { cancel(); asks.Wait() }}
	for _, s := range servers {
		m.answered[s] = time.Now()
	}
	for _, s := range servers {
		asks.Go(func() {
			for ctx.Err() == nil {
				ask, end := context.WithTimeout(ctx, askBound)
				if _, err := s.Kind.Ask(ask, s.URL); err == nil {
					m.answers(s)
				}
				end()
				select {
				case <-time.After(askPause):
				case <-ctx.Done():
				}
			}
		})
	}
	return m
}

// Stop ends the measurement.
func (m *Monitor) Stop() { m.stop() }

// answers records that a server answered.
func (m *Monitor) answers(s *Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if before := m.answered[s]; now.Sub(before) >= standstill {
		m.stalls = append(m.stalls, standsFrom{before, now})
	}
	m.answered[s] = now
}

// longest returns for how long a server stood still at once since a time, now included.
func (m *Monitor) longest(since time.Time) (d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stalls {
		if s.to.After(since) {
			d = max(d, s.to.Sub(s.from))
		}
	}
	for _, answered := range m.answered {
		d = max(d, time.Since(answered))
	}
	return d
}

// Trial is the test of one run of a part. Its failures are those of the part, unless the server
// stood still before: then they are logged, and the run ends as skipped.
type Trial struct {
	testing.TB
	t     *testing.T
	m     *Monitor // nil: every failure counts
	began time.Time

	mu   sync.Mutex
	void bool
}

// Try runs a part as a subtest, and again until a run has a verdict.
func (m *Monitor) Try(t *testing.T, name string, part func(*Trial)) {
	t.Helper()
	for i := 1; ; i++ {
		sub := name
		if i > 1 {
			sub = fmt.Sprint(name, ", try ", i)
		}
		run := &Trial{m: m, began: time.Now()}
		if i == trials {
			run.m = nil
		}
		ran := false
		passed := t.Run(sub, func(t *testing.T) {
			ran = true
			run.is(t, part)
		})
		if i > 1 && !ran {
			t.Errorf("%s is not one of the tests that were asked for, and %s has no verdict without it", sub, name)
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

// Run runs a part of the part as a subtest, which counts as the part does.
func (r *Trial) Run(name string, f func(*Trial)) {
	r.Helper()
	sub := &Trial{m: r.m, began: r.began}
	r.t.Run(name, func(t *testing.T) { sub.is(t, f) })
	if sub.Void() {
		r.setVoid()
	}
}

// Void reports whether a failure was excused.
func (r *Trial) Void() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.void
}

func (r *Trial) setVoid() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.void = true
}

// excused reports whether a failure proves nothing, and logs it if so.
func (r *Trial) excused(text string) bool {
	r.TB.Helper()
	if r.m == nil {
		return false
	}
	if stood := r.m.longest(r.began); stood >= standstill {
		r.setVoid()
		r.TB.Logf("the server stood still for %s, so that this proves nothing; once more: %s", stood.Round(time.Millisecond), text)
	}
	return r.Void()
}

// Error implements [testing.TB].
func (r *Trial) Error(args ...any) {
	r.TB.Helper()
	if text := fmt.Sprint(args...); !r.excused(text) {
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
	if r.excused(text) {
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

// Strict returns the test for what no server's standstill excuses, as that two hold one lock.
func Strict(t testing.TB) testing.TB {
	if r, is := t.(*Trial); is {
		return r.TB
	}
	return t
}
