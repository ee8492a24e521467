package dlockotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver/memory"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// run has known waits and holds: waits of 0, 5 and 2 s, the last of which fails; holds of 5 and 6
// s, the second of which is lost; and one of a minute that Close ends after five renewals.
func run(t *testing.T, o Options) {
	t.Helper()
	hooks, err := Hooks(o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := dlock.New(b, dlock.TTL(30*time.Second), dlock.Logger(nil), dlock.Observe(hooks))
	if err != nil {
		t.Fatal(err)
	}
	ctx, caller := o.TracerProvider.Tracer("program").Start(t.Context(), "order")
	defer caller.End()
	lock := func(name string) *dlock.Lease {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := lock("orders/1")
	c.Mutex("orders/1").Lock(first.Context(ctx)) // a re-entry, which has no span
	first.Unlock(ctx)
	again, _ := c.Mutex("orders/2").Lock(ctx)
	time.AfterFunc(5*time.Second, func() { again.Unlock(context.Background()) })
	second := lock("orders/2") // after 5 s
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := c.Mutex("orders/2").Lock(short); !errors.Is(err, dlock.ErrHeld) {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second)
	if err := c.Break(ctx, "orders/2", second.Token(), dlock.Force()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if _, err := c.Semaphore("orders/1", 2).Lock(ctx); !errors.Is(err, dlock.ErrConflict) {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Second)
	c.Close()
}

func TestSpansOfAKnownRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		spans := tracetest.NewSpanRecorder()
		run(t, Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))})
		var got []string
		names := map[string]string{}
		for _, s := range spans.Ended() {
			names[s.SpanContext().SpanID().String()] = s.Name()
		}
		for _, s := range spans.Ended() {
			set := attribute.NewSet(s.Attributes()...)
			value := func(key attribute.Key) string { v, _ := set.Value(key); return v.AsString() }
			if s.Name() == "order" {
				continue
			}
			token, _ := set.Value("dlock.token")
			got = append(got, fmt.Sprintf("%s %s %s%s %s from %s for %s under %s token=%t error=%t", s.Name(), value("dlock.name"),
				value("dlock.outcome"), value("dlock.end"), value("dlock.reason"), s.StartTime().Sub(start), s.EndTime().Sub(s.StartTime()),
				names[s.Parent().SpanID().String()], token.AsInt64() > 0, s.Status().Code == codes.Error))
			if value("dlock.backend") != "memory" {
				t.Errorf("%s has no backend", s.Name())
			}
		}
		want := []string{
			"dlock.wait orders/1 granted  from 0s for 0s under order token=true error=false",
			"dlock.wait orders/2 granted  from 0s for 0s under order token=true error=false",
			"dlock.wait orders/2 granted  from 0s for 5s under order token=true error=false",
			"dlock.hold orders/2 released  from 0s for 5s under dlock.wait token=true error=false",
			"dlock.wait orders/2 held  from 5s for 2s under order token=false error=false",
			"dlock.hold orders/2 lost reported from 5s for 6s under dlock.wait token=true error=true",
			"dlock.wait orders/1 error  from 11s for 0s under order token=false error=true",
			"dlock.hold orders/1 closed  from 0s for 1m1s under dlock.wait token=true error=false",
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("spans:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestMetricsOfAKnownRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		run(t, Options{
			TracerProvider: sdktrace.NewTracerProvider(),
			MeterProvider:  metric.NewMeterProvider(metric.WithReader(reader)),
			Class:          func(name string) string { class, _, _ := strings.Cut(name, "/"); return class },
		})
		var data metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &data); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range data.ScopeMetrics[0].Metrics {
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					got = append(got, fmt.Sprintf("%s{%s} %d in %g s", m.Name, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Count, p.Sum))
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					got = append(got, fmt.Sprintf("%s{%s} %d", m.Name, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Value))
				}
			}
		}
		want := []string{
			"dlock.wait.duration{dlock.backend=memory,dlock.class=orders,dlock.outcome=granted} 3 in 5 s",
			"dlock.wait.duration{dlock.backend=memory,dlock.class=orders,dlock.outcome=held} 1 in 2 s",
			"dlock.wait.duration{dlock.backend=memory,dlock.class=orders,dlock.outcome=error} 1 in 0 s",
			"dlock.hold.duration{dlock.backend=memory,dlock.class=orders,dlock.end=released} 1 in 5 s",
			"dlock.hold.duration{dlock.backend=memory,dlock.class=orders,dlock.end=lost} 1 in 6 s",
			"dlock.hold.duration{dlock.backend=memory,dlock.class=orders,dlock.end=closed} 1 in 61 s",
			"dlock.holds{dlock.backend=memory,dlock.class=orders} 0",
			"dlock.losses{dlock.backend=memory,dlock.class=orders,dlock.reason=reported} 1",
			"dlock.renewal.duration{dlock.backend=memory} 6 in 0 s",
			"dlock.renewed.holds{dlock.backend=memory,dlock.outcome=renewed} 7",
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("metrics:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// A Lock of a name that is not UTF-8 is refused, and has a span with text that exporters take.
func TestANameThatIsNoText(t *testing.T) {
	spans, reader := tracetest.NewSpanRecorder(), metric.NewManualReader()
	hooks, err := Hooks(Options{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(reader)),
		Class:          func(name string) string { return name },
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := dlock.Open(t.Context(), "memory:", dlock.Observe(hooks))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Mutex("a\xff").Lock(t.Context()); !errors.Is(err, dlock.ErrInvalidName) {
		t.Fatal(err)
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	if len(spans.Ended()) != 1 || len(data.ScopeMetrics) != 1 {
		t.Fatalf("%d spans, %d scopes", len(spans.Ended()), len(data.ScopeMetrics))
	}
	if text := fmt.Sprint(spans.Ended()[0].Attributes(), spans.Ended()[0].Status(), data.ScopeMetrics[0].Metrics); !utf8.ValidString(text) || !strings.Contains(text, "a\uFFFD") {
		t.Errorf("%q", text)
	}
}
