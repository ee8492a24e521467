// Webhandler takes payments over HTTP, one at a time for each order. Another request meanwhile gets
// 409; each gets 503 with Retry-After while the lock service does not answer. Run it with
//
//	go run ./webhandler -listen localhost:8080 file:///tmp/locks
//	curl -i -X POST localhost:8080/orders/42/pay
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlockhttp"
	_ "github.com/dlock-go/dlock/driver/file" // or the driver of your service
)

func main() {
	address := flag.String("listen", "localhost:8080", "where to serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := dlock.Open(ctx, cmp.Or(flag.Arg(0), os.Getenv("DLOCK_URL"), "file:///tmp/locks"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	byOrder := func(r *http.Request) dlock.Mutex {
		return client.Mutex(dlock.Name("orders", r.PathValue("id")), dlock.Wait(0)) // 409 at once
	}
	http.Handle("POST /orders/{id}/pay", dlockhttp.Handler(http.HandlerFunc(pay), byOrder, dlockhttp.Options{}))
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	log.Print("serving on ", listener.Addr())
	server := &http.Server{ReadTimeout: 10 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })
	if err := server.Serve(listener); err != http.ErrServerClosed {
		log.Fatal(err)
	}
	if err := <-stopped; err != nil { // Shutdown waits for the requests under way
		log.Fatal(err)
	}
}

// pay runs under the lock. The context of the request ends if the lock is lost.
func pay(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "paid", r.PathValue("id"))
}
