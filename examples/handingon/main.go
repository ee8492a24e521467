// Handingon has a child process work under its lock: it hands its hold on, as text in the
// environment, and the child joins it. Run it with
//
//	go run ./handingon file:///tmp/locks
//
// It is the example of docs/handing-on.md.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file"
)

func main() {
	ctx := context.Background()
	client, err := dlock.Open(ctx, os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	owner, err := dlock.ParseOwner(os.Getenv("ORDER_OWNER")) // in the parent the zero Owner
	if err != nil {
		log.Fatal(err)
	}
	ctx = dlock.WithOwner(ctx, owner)                 // the zero Owner changes nothing
	lease, err := client.Mutex("orders/42").Lock(ctx) // the parent waits; the child joins
	if err != nil {
		log.Fatal(err) // in the child: ErrLost if the parent's hold has ended
	}
	defer lease.Unlock(ctx)
	fmt.Printf("child: %t, token %d\n", !owner.IsZero(), lease.Token())
	if !owner.IsZero() {
		return // the child's work
	}
	child := exec.CommandContext(lease.Context(ctx), os.Args[0], os.Args[1])
	child.Env = append(os.Environ(), "ORDER_OWNER="+lease.Owner().String())
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Run(); err != nil {
		log.Fatal(err)
	}
}
