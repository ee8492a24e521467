package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

func newDemo() *cobra.Command {
	o := demo.Options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "A flash sale: several shops sell one stock, first without a lock, then under dlock",
		Long: `A flash sale: several shops, which are processes, sell one stock to more buyers than it has items.
Each sale reads the stock, pauses for the time of --think, and writes the stock back.

Without a lock the shops oversell. Under dlock they sell exactly the stock, although one shop is
killed (SIGKILL) in the middle of a sale.

Exit status: 0 if exactly the stock was sold under the lock; 1 if not, or if something failed; 2 for
wrong flags; 130 if interrupted.`,
		Example: `  dlock demo
  dlock demo --shops 8 --buyers 1000 --stock 200 --think 2ms
  dlock demo --url "file:///var/lib/shop/locks?ttl=5s"`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return untilSignal(func(ctx context.Context) error { return demo.Run(ctx, o, cmd.OutOrStdout()) })
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.URL, "url", "", "the backend (default: file: in a temporary folder); without a ttl in it, the TTL is 2s, or the nearest that the backend allows")
	f.IntVar(&o.Shops, "shops", 4, "number of processes that sell")
	f.IntVar(&o.Buyers, "buyers", 300, "number of buyers in all shops; they arrive faster than they are served")
	f.IntVar(&o.Stock, "stock", 50, "number of items to sell")
	f.DurationVar(&o.Think, "think", 5*time.Millisecond, "time between reading the stock and writing it")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "time limit for the whole demo")
	return cmd
}

// newShop is the command with which the demo starts its shops.
func newShop() *cobra.Command {
	return &cobra.Command{
		Use:    demo.ShopCommand,
		Short:  "One shop of the demo, which starts it",
		Hidden: true,
		Args:   noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// a terminal sends these to all processes: the demo ends its shops
			signal.Ignore(os.Interrupt, syscall.SIGHUP)
			return demo.Shop(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
