// Workers is a pool of workers that shares a semaphore with the pools of other processes: all
// processes together do at most -limit jobs at a time. Start it twice:
//
//	go run ./workers -workers 4 -limit 3 -jobs 20 file:///tmp/locks
//
// Without an argument the URL is that in DLOCK_URL.
package main

import (
	"cmp"
	"context"
	"flag"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file" // or the driver of your service
)

func main() {
	workers := flag.Int("workers", 4, "the workers of this process")
	limit := flag.Int("limit", 3, "how many jobs all processes together do at a time")
	jobs := flag.Int("jobs", 20, "the jobs of this process")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := dlock.Open(ctx, cmp.Or(flag.Arg(0), os.Getenv("DLOCK_URL"), "file:///tmp/locks"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	permits := client.Semaphore("encoders", *limit)
	queue, pool := make(chan int), sync.WaitGroup{}
	for range *workers {
		pool.Go(func() {
			for job := range queue {
				if err := dlock.Do(ctx, permits, encode); err != nil {
					log.Printf("job %d: %v", job, err)
				}
			}
		})
	}
	for job := 0; job < *jobs && ctx.Err() == nil; job++ {
		queue <- job
	}
	close(queue)
	pool.Wait()
}

// encode is a job, done under a permit. It has to stop when ctx ends: the permit may be lost.
func encode(ctx context.Context) error {
	log.Print("begin")
	defer log.Print("end")
	return exec.CommandContext(ctx, "sleep", "0.1").Run()
}
