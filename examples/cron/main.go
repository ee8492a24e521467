// Cron runs a job once per period of the wall clock, on one of the replicas that have the same URL.
// Start three of them, each in a terminal of its own:
//
//	go run ./cron -period 10s file:///tmp/locks
//
// Without an argument the URL is that in DLOCK_URL.
package main

import (
	"cmp"
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file" // or the driver of your service
)

func main() {
	period := flag.Duration("period", time.Minute, "how often the job runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := dlock.Open(ctx, cmp.Or(flag.Arg(0), os.Getenv("DLOCK_URL"), "file:///tmp/locks"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for {
		// the replicas share the wall clock; a ticker would begin at another moment in each
		next := time.Now().Truncate(*period).Add(*period)
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
		ran, err := dlock.OncePer(ctx, client.Mutex("cron/report"), *period, report)
		switch {
		case dlock.IsPermanent(err):
			log.Fatal(err)
		case err != nil:
			log.Printf("%s: failed: %v", next.Format(time.TimeOnly), err)
		case ran:
			log.Printf("%s: ran here", next.Format(time.TimeOnly))
		default:
			log.Printf("%s: ran elsewhere", next.Format(time.TimeOnly))
		}
	}
}

// report is the job. It has to stop when ctx ends, by a signal or because the lock is lost.
func report(ctx context.Context) error { return ctx.Err() }
