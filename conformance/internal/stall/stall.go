// Package stall excuses failures of tests after a stall: the machine did not run the process of the
// tests, or a service did not answer. No driver can keep a lease of a short TTL then, or be prompt,
// so such a failure proves nothing, and the test is run again. The last run has no excuse.
package stall

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Monitor measures how long the machine does not run this process, or a service does not answer. It
// counts from the last answer, since a stall may begin between two checks.
type Monitor struct {
	least  time.Duration // the shortest stall
	ctx    context.Context
	cancel context.CancelFunc
	checks sync.WaitGroup

	mu       sync.Mutex
	answered []time.Time // for each Watch, the time of the last answer
	ended    []stall
}

// stall is one that has ended.
type stall struct{ from, to time.Time }

// NewMonitor watches the machine until Stop or the end of ctx. Pauses shorter than least are not
// stalls.
func NewMonitor(ctx context.Context, least time.Duration) *Monitor {
	m := &Monitor{least: least}
	m.ctx, m.cancel = context.WithCancel(ctx)
	m.Watch(max(least/20, 2*time.Millisecond), func(_ context.Context, answered func()) { answered() })
	return m
}

// Watch calls ask repeatedly until Stop, with a pause after each call. ask calls a service, and
// calls answered after each answer. The pause must be shorter than a stall, since it is part of the
// measured time.
func (m *Monitor) Watch(pause time.Duration, ask func(ctx context.Context, answered func())) {
	m.mu.Lock()
	i := len(m.answered)
	m.answered = append(m.answered, time.Now())
	m.mu.Unlock()
	answered := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		now := time.Now()
		if from := m.answered[i]; now.Sub(from) >= m.least {
			m.ended = append(m.ended, stall{from, now})
		}
		m.answered[i] = now
	}
	m.checks.Go(func() {
		for m.ctx.Err() == nil {
			ask(m.ctx, answered)
			select {
			case <-time.After(pause):
			case <-m.ctx.Done():
			}
		}
	})
}

// Failed records that a service answered with an error, which counts as a stall.
func (m *Monitor) Failed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.ended = append(m.ended, stall{now.Add(-m.least), now})
}

// Longest returns the longest stall that had not ended at that time, including a current one. It
// may be shorter than what counts as a stall.
func (m *Monitor) Longest(since time.Time) (d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.ended {
		if s.to.After(since) {
			d = max(d, s.to.Sub(s.from))
		}
	}
	for _, from := range m.answered {
		d = max(d, time.Since(from))
	}
	return d
}

// Stop ends the measurement, and waits for the calls under way.
func (m *Monitor) Stop() {
	m.cancel()
	m.checks.Wait()
}

// Run is one run of a test that a stall may spoil. The zero value and nil, for the last run, excuse
// nothing.
type Run struct {
	Monitor *Monitor
	Began   time.Time

	void atomic.Bool
}

// T is where a [Run] logs what it excuses.
type T interface {
	Helper()
	Logf(format string, args ...any)
}

// Excuses reports whether a failure proves nothing, because it came after a stall or after a
// failure that did. If so it is logged to t, and the caller must not report the failure.
func (r *Run) Excuses(t T, failure string) bool {
	t.Helper()
	if r == nil || r.Monitor == nil {
		return false
	}
	if d := r.Monitor.Longest(r.Began); d >= r.Monitor.least {
		r.void.Store(true)
		t.Logf("the machine or the service stalled for %s, so this failure proves nothing; once more: %s", d.Round(time.Millisecond), failure)
	}
	return r.void.Load()
}

// Void reports whether a failure was excused: the run has no verdict.
func (r *Run) Void() bool { return r != nil && r.void.Load() }
