// Package dlockprometheus provides Prometheus metrics of dlock clients:
//
//	m := dlockprometheus.New(dlockprometheus.Options{})
//	prometheus.MustRegister(m)
//	client, err := dlock.Open(ctx, url, dlock.Observe(m.Hooks()))
//
// The metrics, each with the label backend (the scheme of the URL), and those of waits, holds and
// losses with the label class, which [Options].Class sets:
//
//   - dlock_wait_seconds, a histogram: how long Lock and TryLock took; outcome is granted, held
//     (the error says that the lock is held), canceled (the caller's context ended before there
//     was an answer) or error. Re-entries are not counted.
//   - dlock_hold_seconds, a histogram: how long holds lasted; end is released, lost or closed.
//   - dlock_holds, a gauge: current holds.
//   - dlock_losses_total, a counter: holds that were lost; reason is not_renewed, denied, reported
//     or time_up (a fixed lease that ended as planned).
//   - dlock_renewal_seconds, a histogram: how long a renewal call took.
//   - dlock_renewed_holds_total, a counter: holds that these calls were to renew; outcome is
//     renewed, unknown or lost.
//
// The name of a lock is not a label: names contain keys of a program's data, and each name would be
// a time series that never goes away. Class maps names to a few classes.
package dlockprometheus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/prometheus/client_golang/prometheus"
)

// Options configure [New]. The zero value is ready to use.
type Options struct {
	// Class returns the value of the label class for the name of a lock: "orders" for "orders/42".
	// It must return few different values, be fast, and be safe for concurrent use. nil: the label
	// is empty.
	Class func(name string) string

	// Buckets are the upper bounds, in seconds, of the histograms of waits and holds, in increasing
	// order. Empty: 1 ms to 5 minutes.
	Buckets []float64
}

// Metrics collects metrics from the calls of its hooks. One is enough for all clients of a program.
// It implements [prometheus.Collector], and is safe for concurrent use. [New] makes one; the zero
// Metrics is not usable.
type Metrics struct {
	class func(name string) string

	wait, hold    *prometheus.HistogramVec
	renewal       *prometheus.HistogramVec
	holds         *prometheus.GaugeVec
	losses, proof *prometheus.CounterVec
}

var defaultBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// New returns metrics, which the caller has to register. It panics if the buckets are not in
// increasing order.
func New(o Options) *Metrics {
	m := &Metrics{class: func(string) string { return "" }}
	if o.Class != nil {
		// labels have to be UTF-8; a Lock of a name that is not fails, and is counted
		m.class = func(name string) string { return strings.ToValidUTF8(o.Class(name), "\uFFFD") }
	}
	buckets := o.Buckets
	if len(buckets) == 0 {
		buckets = defaultBuckets
	}
	// bad buckets panic here, and not in the hook of each Lock
	prometheus.NewHistogram(prometheus.HistogramOpts{Buckets: buckets})
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m.wait = histogram("dlock_wait_seconds", "How long Lock and TryLock took.", buckets, "backend", "class", "outcome")
	m.hold = histogram("dlock_hold_seconds", "How long holds lasted.", buckets, "backend", "class", "end")
	m.renewal = histogram("dlock_renewal_seconds", "How long renewal calls took.", defaultBuckets, "backend")
	m.holds = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dlock_holds", Help: "Current holds."}, []string{"backend", "class"})
	m.losses = counter("dlock_losses_total", "Holds that were lost.", "backend", "class", "reason")
	m.proof = counter("dlock_renewed_holds_total", "Holds that renewal calls were to renew.", "backend", "outcome")
	return m
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.wait, m.hold, m.renewal, m.holds, m.losses, m.proof}
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
}

// Hooks returns hooks for [dlock.Observe], which several clients may share.
func (m *Metrics) Hooks() dlock.Hooks {
	return dlock.Hooks{Lock: m.lock, Ended: m.ended, Renewed: m.renewed}
}

func (m *Metrics) lock(ctx context.Context, op dlock.LockOp) (context.Context, func(*dlock.Lease, error)) {
	if op.Reenters {
		return nil, nil
	}
	class, start := m.class(op.Name), time.Now()
	return nil, func(l *dlock.Lease, err error) {
		m.wait.WithLabelValues(op.Backend, class, outcome(err)).Observe(time.Since(start).Seconds())
		if l != nil {
			m.holds.WithLabelValues(op.Backend, class).Inc()
		}
	}
}

// outcome is the result of a Lock.
func outcome(err error) string {
	switch {
	case err == nil:
		return "granted"
	case errors.Is(err, dlock.ErrHeld):
		return "held"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	default:
		return "error"
	}
}

func (m *Metrics) ended(_ context.Context, e dlock.HoldEnd) {
	class, end := m.class(e.Name), "released"
	switch {
	case errors.Is(e.Err, dlock.ErrLost):
		end = "lost"
		m.losses.WithLabelValues(e.Backend, class, string(e.Loss)).Inc()
	case e.Err != nil:
		end = "closed"
	}
	m.hold.WithLabelValues(e.Backend, class, end).Observe(e.Held.Seconds())
	m.holds.WithLabelValues(e.Backend, class).Dec()
}

func (m *Metrics) renewed(r dlock.Renewal) {
	m.renewal.WithLabelValues(r.Backend).Observe(r.Took.Seconds())
	for outcome, n := range map[string]int{"renewed": r.Holds - r.Unknown - r.Lost, "unknown": r.Unknown, "lost": r.Lost} {
		if n > 0 {
			m.proof.WithLabelValues(r.Backend, outcome).Add(float64(n))
		}
	}
}
