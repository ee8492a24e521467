// Observing shows its locks: their metrics as Prometheus scrapes them, and their waits and holds as
// spans of an OpenTelemetry trace. It does a little work, prints both, and ends.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/memory"
	dlockotel "github.com/dlock-go/dlock/otel"
	dlockprometheus "github.com/dlock-go/dlock/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/trace"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	// spans have the whole name; metrics have a label, class, with the part before the slash
	class := func(name string) string { class, _, _ := strings.Cut(name, "/"); return class }

	metrics := dlockprometheus.New(dlockprometheus.Options{Class: class})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)

	exporter, err := stdouttrace.New(stdouttrace.WithWriter(out), stdouttrace.WithPrettyPrint())
	if err != nil {
		return err
	}
	traces := trace.NewTracerProvider(trace.WithSyncer(exporter))
	spans, err := dlockotel.Hooks(dlockotel.Options{TracerProvider: traces, Class: class})
	if err != nil {
		return err
	}

	client, err := dlock.Open(ctx, "memory:", dlock.Observe(metrics.Hooks()), dlock.Observe(spans))
	if err != nil {
		return err
	}
	if err := work(ctx, client, traces); err != nil {
		return err
	}
	if err := client.Close(); err != nil {
		return err
	}

	page := httptest.NewRecorder() // what GET /metrics returns
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	fmt.Fprint(out, page.Body)
	return nil
}

// work charges an order while another client holds it for 50 ms.
func work(ctx context.Context, client *dlock.Client, traces *trace.TracerProvider) error {
	order := client.Mutex("orders/42")
	other, err := order.Lock(ctx)
	if err != nil {
		return err
	}
	time.AfterFunc(50*time.Millisecond, func() { other.Unlock(ctx) })

	charge, span := traces.Tracer("shop").Start(ctx, "charge order 42")
	defer span.End()
	return dlock.Do(charge, order, func(context.Context) error {
		time.Sleep(20 * time.Millisecond)
		return nil
	})
}
