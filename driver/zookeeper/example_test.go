package zookeeper_test

import (
	"context"
	"log"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// A connection that the rest of the program uses too. Close the client before it.
func ExampleConnect() {
	ctx := context.Background()
	conn, err := zookeeper.Connect([]string{"h1:2181", "h2:2181", "h3:2181"}, 40*time.Second, zookeeper.ConnectOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	backend, err := zookeeper.New(ctx, conn, zookeeper.Options{Chroot: "/teams/shop"})
	if err != nil {
		log.Fatal(err)
	}
	client, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = dlock.Do(ctx, client.Mutex("orders/42"), func(ctx context.Context) error {
		_, err := conn.ZK().Set("/teams/shop/orders/42", []byte("paid"), -1)
		return err
	})
	if err != nil {
		log.Print(err)
	}
}
