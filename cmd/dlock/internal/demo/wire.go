package demo

import (
	"context"
	"path/filepath"
	"time"

	"github.com/dlock-go/dlock"
)

// The coordinator writes to a shop's standard input: its config, and, once every shop is ready, the
// word start. The end of that input ends the shop, so no shop outlives its coordinator. A shop
// writes events to its standard output. Both are JSON.

const start = "start"

// config is a shop's part. It is passed through a pipe and not in arguments, which every user of
// the machine can read: the URL may have a password.
type config struct {
	Dir   string        // of the stock and the ledger
	URL   string        // of the backend; empty: sell without a lock
	TTL   time.Duration // 0: that of the URL
	Name  string        // of the lock
	Think time.Duration
	Pause time.Duration // between its buyers
	// the first shop that reads this number stops there and is killed; 0: none
	KillAt int
	Shop   int // from 1
	Shops  int
	Buyers int
}

func (c config) stock() stock   { return stock(filepath.Join(c.Dir, "stock")) }
func (c config) ledger() ledger { return ledger(filepath.Join(c.Dir, "ledger")) }

// open reaches the backend.
func (c config) open(ctx context.Context) (*dlock.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	opts := []dlock.Option{dlock.Logger(nil)} // the error of the lease reports a loss
	if c.TTL > 0 {
		opts = append(opts, dlock.TTL(c.TTL))
	}
	return dlock.Open(ctx, c.URL, opts...)
}

// event is a message of a shop.
type event struct {
	Kind   kind
	Left   int           `json:",omitempty"` // held, killMe: the stock that was read
	Token  dlock.Token   `json:",omitempty"` // held, killMe
	Waited time.Duration `json:",omitempty"` // held
	Text   string        `json:",omitempty"` // note, failed
}

type kind string

const (
	ready  kind = "ready"   // the backend is reached
	held   kind = "held"    // a buyer has the lease and has read the stock
	killMe kind = "kill me" // the same buyer is now in the middle of a sale
	sold   kind = "sold"    // written, and in the ledger
	note   kind = "note"    // something went wrong and was dealt with
	failed kind = "failed"  // the shop ends with an error
	done   kind = "done"    // every buyer went home
)
