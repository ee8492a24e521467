package demo

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// fault names the fault of the shops. The test binary is the program that the coordinator starts
// again, so tests can have shops in which something is broken.
const fault = "DLOCK_DEMO_FAULT"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == ShopCommand {
		if breakShop(os.Getenv(fault)); Shop(os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=10") // of the shops, instead of a second
	os.Exit(m.Run())
}

func breakShop(what string) {
	working := openLock
	broken := func(l lock, err error) func(context.Context, config) (lock, func() error, error) {
		return func(ctx context.Context, c config) (lock, func() error, error) {
			if c.URL == "" {
				return working(ctx, c)
			}
			return l, func() error { return nil }, err
		}
	}
	switch what {
	case "no lock":
		openLock = broken(unguarded, nil)
	case "no backend":
		openLock = broken(nil, errors.New("no such backend"))
	case "panic":
		openLock = broken(func(context.Context) (lease, error) { panic("out of order") }, nil)
	case "hang":
		openLock = broken(func(context.Context) (lease, error) { time.Sleep(time.Hour); return nil, nil }, nil)
	case "exit":
		openLock = broken(func(context.Context) (lease, error) { os.Exit(0); return nil, nil }, nil)
	}
}
