// Fencedwrite pays an order in a SQL database, which refuses a holder of the lock that comes too
// late. Start it twice: the second waits for the first. Stop the first with Ctrl-Z. After the TTL
// the second holds the lock; press Enter there, and it pays. Resume the first with fg, press Enter,
// and it is refused.
//
//	go run ./fencedwrite 'file:///tmp/locks?ttl=5s' /tmp/shop.db
//
// Without an argument the URL is that in DLOCK_URL. The file pay.go has the write.
package main

import (
	"cmp"
	"context"
	"flag"
	"log"
	"os"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file" // or the driver of your service
	_ "modernc.org/sqlite"
)

func main() {
	flag.Parse()
	url := cmp.Or(flag.Arg(0), os.Getenv("DLOCK_URL"), "file:///tmp/locks?ttl=5s")
	if err := run(context.Background(), url, cmp.Or(flag.Arg(1), "/tmp/shop.db")); err != nil {
		log.Fatal(err)
	}
	log.Print("paid")
}

func run(ctx context.Context, url, database string) error {
	client, err := dlock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close()
	db, err := open(ctx, database)
	if err != nil {
		return err
	}
	defer db.Close()
	return pay(ctx, client, db)
}
