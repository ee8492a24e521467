// Package stall excuses what fails after a stall: the machine did not serve the process of the
// tests, or a service did not answer. No driver keeps a lease of a short TTL then, or answers in
// time, so such a failure proves nothing, and what failed is run again. The last run has no excuse.
package stall

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Monitor measures for how long the machine does not serve this process, or a service does not
// answer: from the last answer on, since a stall may begin between two looks.
type Monitor struct {
	least  time.Duration // what is shorter is no stall
	ctx    context.Context
	cancel context.CancelFunc
	looks  sync.WaitGroup

	mu       sync.Mutex
	answered []time.Time // when each of those that are watched answered last
	over     []stall
}

// stall is one that is over.
type stall struct{ from, to time.Time }

// NewMonitor watches the machine until Stop, or the end of ctx. What is shorter than least is no
// stall.
func NewMonitor(ctx context.Context, least time.Duration) *Monitor {
	m := &Monitor{least: least}
	m.ctx, m.cancel = context.WithCancel(ctx)
	m.Watch(max(least/20, 2*time.Millisecond), func(_ context.Context, answered func()) { answered() })
	return m
}

// Watch has ask called again and again, with a pause after each call, until Stop: ask asks a
// service, and calls answered with each answer. The pause is shorter than a stall, since each is
// part of what is measured.
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
			m.over = append(m.over, stall{from, now})
		}
		m.answered[i] = now
	}
	m.looks.Go(func() {
		for m.ctx.Err() == nil {
			ask(m.ctx, answered)
			select {
			case <-time.After(pause):
			case <-m.ctx.Done():
			}
		}
	})
}

// Failed records that a service answered with an error, where that is as bad as a stall.
func (m *Monitor) Failed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.over = append(m.over, stall{now.Add(-m.least), now})
}

// Longest returns the longest stall that was not over at that time, one that lasts included. It may
// be shorter than what counts as one.
func (m *Monitor) Longest(since time.Time) (d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.over {
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
	m.looks.Wait()
}

// Run is one run of what a stall may spoil. The zero value, and nil, excuse nothing: that is the
// last run.
type Run struct {
	Monitor *Monitor
	Began   time.Time

	void atomic.Bool
}

// T is where a [Run] says what it excuses.
type T interface {
	Helper()
	Logf(format string, args ...any)
}

// Excuses reports whether a failure proves nothing: it came after a stall, or after a failure that
// did. If so it says so in t, and the caller does not pass the failure on.
func (r *Run) Excuses(t T, failure string) bool {
	t.Helper()
	if r == nil || r.Monitor == nil {
		return false
	}
	if d := r.Monitor.Longest(r.Began); d >= r.Monitor.least {
		r.void.Store(true)
		t.Logf("the machine or the service stalled for %s, so that this proves nothing; once more: %s", d.Round(time.Millisecond), failure)
	}
	return r.void.Load()
}

// Void reports whether a failure was excused: the run has no verdict.
func (r *Run) Void() bool { return r != nil && r.void.Load() }
