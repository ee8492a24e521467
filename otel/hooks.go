// Package dlockotel provides OpenTelemetry traces and metrics of dlock clients:
//
//	hooks, err := dlockotel.Hooks(dlockotel.Options{})
//	if err != nil { … }
//	client, err := dlock.Open(ctx, url, dlock.Observe(hooks))
//
// # Spans
//
// The span "dlock.wait" is a Lock or TryLock, under the span of its caller. Below it, "dlock.hold"
// is the hold that it began, from the grant to the end; it is reported when the hold has ended.
// Both have the attributes dlock.name, dlock.backend and, if the lock was granted, dlock.token. A
// wait also has dlock.try, dlock.shared and dlock.outcome; a hold has dlock.end and, if it was
// lost, dlock.reason. A re-entry has no span.
//
// # Metrics
//
// Each has the attribute dlock.backend. Those of waits, holds and losses also have dlock.class if
// [Options] have a Class:
//
//   - dlock.wait.duration, a histogram in seconds: how long Lock and TryLock took; dlock.outcome is
//     granted, held (the error says that the lock is held), canceled (the caller's context ended
//     before there was an answer) or error.
//   - dlock.hold.duration, a histogram in seconds: how long holds lasted; dlock.end is released,
//     lost or closed.
//   - dlock.holds, an up-down counter: current holds.
//   - dlock.losses, a counter: holds that were lost; dlock.reason is not_renewed, denied, reported
//     or time_up (a fixed lease that ended as planned).
//   - dlock.renewal.duration, a histogram in seconds: how long a renewal call took.
//   - dlock.renewed.holds, a counter: holds that these calls were to renew; dlock.outcome is
//     renewed, unknown or lost.
//
// The name of a lock is an attribute of spans and never of metrics, where each name would be a time
// series that never goes away.
package dlockotel

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Options configure [Hooks]. The zero value is ready to use.
type Options struct {
	// TracerProvider receives the spans; nil: the global one.
	TracerProvider trace.TracerProvider

	// MeterProvider receives the metrics; nil: the global one.
	MeterProvider metric.MeterProvider

	// Class returns the value of the attribute dlock.class for the name of a lock: "orders" for
	// "orders/42". It must return few different values, be fast, and be safe for concurrent use.
	// nil: there is no such attribute.
	Class func(name string) string
}

// scope identifies this package to the providers.
const scope = "github.com/dlock-go/dlock/otel"

// Hooks returns hooks for [dlock.Observe], which several clients may share. It fails if the
// MeterProvider refuses a metric.
func Hooks(o Options) (dlock.Hooks, error) {
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	w := &watcher{tracer: o.TracerProvider.Tracer(scope), class: o.Class}
	if err := w.instruments(o.MeterProvider.Meter(scope)); err != nil {
		return dlock.Hooks{}, err
	}
	return dlock.Hooks{Lock: w.lock, Ended: w.ended, Renewed: w.renewed}, nil
}

// watcher makes spans and metrics from the calls of the hooks.
type watcher struct {
	tracer trace.Tracer
	class  func(name string) string

	wait, hold, renewal  metric.Float64Histogram
	holds                metric.Int64UpDownCounter
	losses, renewedHolds metric.Int64Counter
}

func (w *watcher) instruments(m metric.Meter) error {
	var errs [6]error
	seconds := metric.WithUnit("s")
	buckets := metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300)
	w.wait, errs[0] = m.Float64Histogram("dlock.wait.duration", seconds, buckets, metric.WithDescription("How long Lock and TryLock took."))
	w.hold, errs[1] = m.Float64Histogram("dlock.hold.duration", seconds, buckets, metric.WithDescription("How long holds lasted."))
	w.renewal, errs[2] = m.Float64Histogram("dlock.renewal.duration", seconds, buckets, metric.WithDescription("How long renewal calls took."))
	w.holds, errs[3] = m.Int64UpDownCounter("dlock.holds", metric.WithDescription("Current holds."))
	w.losses, errs[4] = m.Int64Counter("dlock.losses", metric.WithDescription("Holds that were lost."))
	w.renewedHolds, errs[5] = m.Int64Counter("dlock.renewed.holds", metric.WithDescription("Holds that renewal calls were to renew."))
	return errors.Join(errs[:]...)
}

// labels are the attributes of a metric.
func (w *watcher) labels(name, backend string, more ...attribute.KeyValue) metric.MeasurementOption {
	kvs := append(more, attribute.String("dlock.backend", backend))
	if w.class != nil {
		kvs = append(kvs, text("dlock.class", w.class(name)))
	}
	return metric.WithAttributes(kvs...)
}

func (w *watcher) lock(ctx context.Context, op dlock.LockOp) (context.Context, func(*dlock.Lease, error)) {
	if op.Reenters {
		return nil, nil
	}
	start := time.Now()
	ctx, span := w.tracer.Start(ctx, "dlock.wait", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(start), trace.WithAttributes(
		text("dlock.name", op.Name), attribute.String("dlock.backend", op.Backend),
		attribute.Bool("dlock.try", op.Try), attribute.Bool("dlock.shared", op.Shared)))
	return ctx, func(l *dlock.Lease, err error) {
		now, result := time.Now(), outcome(err)
		w.wait.Record(ctx, now.Sub(start).Seconds(), w.labels(op.Name, op.Backend, attribute.String("dlock.outcome", result)))
		span.SetAttributes(attribute.String("dlock.outcome", result))
		if l != nil {
			w.holds.Add(ctx, 1, w.labels(op.Name, op.Backend))
			span.SetAttributes(token(l.Token()))
		}
		if result == "error" {
			span.SetStatus(codes.Error, valid(err.Error()))
		}
		span.End(trace.WithTimestamp(now))
	}
}

// valid returns the text as UTF-8: an exporter would drop a whole batch because of one text that is
// not. A Lock of a name that is not UTF-8 fails, and the hooks are called with that name.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// text is an attribute whose value is not under the control of this package.
func text(key, value string) attribute.KeyValue { return attribute.String(key, valid(value)) }

// token is the attribute of a fencing token.
func token(t dlock.Token) attribute.KeyValue { return attribute.Int64("dlock.token", int64(t)) }

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

func (w *watcher) ended(ctx context.Context, e dlock.HoldEnd) {
	end := "released"
	switch {
	case errors.Is(e.Err, dlock.ErrLost):
		end = "lost"
		w.losses.Add(ctx, 1, w.labels(e.Name, e.Backend, attribute.String("dlock.reason", string(e.Loss))))
	case e.Err != nil:
		end = "closed"
	}
	w.hold.Record(ctx, e.Held.Seconds(), w.labels(e.Name, e.Backend, attribute.String("dlock.end", end)))
	w.holds.Add(ctx, -1, w.labels(e.Name, e.Backend))

	_, span := w.tracer.Start(ctx, "dlock.hold", trace.WithTimestamp(e.At.Add(-e.Held)), trace.WithAttributes(
		text("dlock.name", e.Name), attribute.String("dlock.backend", e.Backend), token(e.Token), attribute.String("dlock.end", end)))
	if end == "lost" {
		span.SetAttributes(attribute.String("dlock.reason", string(e.Loss)))
		if e.Loss != dlock.LossTimeUp { // which is the plan
			span.SetStatus(codes.Error, valid(e.Err.Error()))
		}
	}
	span.End(trace.WithTimestamp(e.At))
}

func (w *watcher) renewed(r dlock.Renewal) {
	ctx, backend := context.Background(), attribute.String("dlock.backend", r.Backend)
	w.renewal.Record(ctx, r.Took.Seconds(), metric.WithAttributes(backend))
	for outcome, n := range map[string]int{"renewed": r.Holds - r.Unknown - r.Lost, "unknown": r.Unknown, "lost": r.Lost} {
		if n > 0 {
			w.renewedHolds.Add(ctx, int64(n), metric.WithAttributes(backend, attribute.String("dlock.outcome", outcome)))
		}
	}
}
