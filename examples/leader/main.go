// Leader elects one of several processes; the next one takes over when the leader stops or dies.
// Start two candidates and an observer, each in a terminal of its own, and kill the leader:
//
//	go run ./leader -address 10.0.0.1:8080 file:///tmp/locks
//	go run ./leader -observe file:///tmp/locks
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
	address := flag.String("address", "localhost:8080", "where this candidate serves")
	observe := flag.Bool("observe", false, "show each leader, without being a candidate")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := dlock.Open(ctx, cmp.Or(flag.Arg(0), os.Getenv("DLOCK_URL"), "file:///tmp/locks"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	election := client.Election("scheduler", dlock.Label(*address), dlock.TTL(5*time.Second))
	if *observe {
		for leader, err := range election.Watch(ctx) {
			switch {
			case err != nil:
				log.Print("the leader is unknown: ", err)
			case leader == dlock.Leader{}:
				log.Print("no leader")
			default:
				log.Printf("%s leads, term %d", leader.Label, leader.Term)
			}
		}
	} else if err := election.Run(ctx, lead); ctx.Err() == nil { // no signal ended it
		log.Fatal(err)
	}
}

// lead is the leader's work. It has to stop when ctx ends: another candidate may lead then.
func lead(ctx context.Context, term dlock.Token) error {
	log.Printf("leading, term %d", term)
	<-ctx.Done()
	log.Print("the term has ended: ", context.Cause(ctx))
	return nil
}
