// Testing shows how to test work under a lock. In the tests of main_test.go the lock is held by
// another client, the lease is lost during the work, and the service is slow. They need no service
// and run in virtual time. Run them, and the program, with
//
//	go test -v ./testing
//	go run ./testing file:///tmp/locks
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file" // or the driver of your service
)

func main() {
	flag.Parse()
	ctx := context.Background()
	client, err := dlock.Open(ctx, cmp.Or(flag.Arg(0), os.Getenv("DLOCK_URL"), "file:///tmp/locks"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	bring := func(context.Context) error { log.Print("a crate of apples"); return nil }
	if err := restock(ctx, client, "apples", 10, bring); err != nil {
		log.Fatal(err)
	}
}

// errBusy is the error of restock while another process restocks the same item.
var errBusy = errors.New("the item is being restocked")

// restock has n crates of the item brought in, one after the other. It waits for at most a minute
// for the lock of the item. It stops, with an error that matches [dlock.ErrLost], when its lease is
// lost.
func restock(ctx context.Context, client *dlock.Client, item string, n int, bring func(context.Context) error) error {
	mutex := client.Mutex(dlock.Name("items", item), dlock.Wait(time.Minute))
	err := dlock.Do(ctx, mutex, func(ctx context.Context) error {
		for range n {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := bring(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, dlock.ErrHeld) {
		return errBusy
	}
	return err
}
