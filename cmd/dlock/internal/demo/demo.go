// Package demo is the flash sale: shops, which are processes, sell one stock to more buyers than it
// has items. Each sale is a slow read-modify-write of a file. Without a lock that oversells; under
// dlock it sells exactly the stock, although one shop is killed in the middle of a sale.
//
// The coordinator (this process) starts the shops, kills one, and reports the sales in the ledger,
// to which every sale is appended.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/all" // --url takes every scheme
)

// ErrUsage is matched by errors of wrong options. Their texts say what is allowed.
var ErrUsage = errors.New("usage")

const (
	// if the URL has none: on a service that cannot see processes die, this is the takeover time
	defaultTTL  = 2 * time.Second
	openWithin  = 10 * time.Second // to reach the backend
	closeWithin = 3 * time.Second  // for a shop to end by itself once it has been asked to
	allHere     = time.Second      // within which all buyers have come
	mostShops   = 100
	mostBuyers  = 100_000
)

// Options say what is sold, by whom, to whom, and on which backend. The zero value is not valid.
type Options struct {
	URL     string        // of the backend; empty: file: in a temporary folder
	Shops   int           // processes, 2 to 100
	Buyers  int           // goroutines, spread evenly over the shops, which they come to in turns
	Stock   int           // items
	Think   time.Duration // between reading the stock and writing it back
	Timeout time.Duration // of the whole demo
}

// check refuses options that cannot be shown, such as too few buyers to sell the stock once a shop
// is gone.
func (o Options) check() error {
	usage := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrUsage}, args...)...)
	}
	switch {
	case o.Shops < 2 || o.Shops > mostShops:
		return usage("--shops %d: 2 to %d are allowed; one is killed, and another one has to go on", o.Shops, mostShops)
	case o.Stock < 1 || o.Stock > mostBuyers/2:
		return usage("--stock %d: 1 to %d are allowed", o.Stock, mostBuyers/2)
	case o.Buyers < leastBuyers(o.Shops, o.Stock) || o.Buyers > mostBuyers:
		return usage("--buyers %d: with %d shops and a stock of %d, %d to %d are allowed; "+
			"the buyers of the killed shop are gone, and the others have to buy the rest",
			o.Buyers, o.Shops, o.Stock, leastBuyers(o.Shops, o.Stock), mostBuyers)
	case o.Think < 0:
		return usage("--think %s: 0s or more is allowed", o.Think)
	case o.Timeout <= 0:
		return usage("--timeout %s: more than 0s is allowed", o.Timeout)
	case o.Think > o.Timeout/time.Duration(2*o.Stock):
		return usage("--think %s: %d sales, one after the other, have to fit into half of --timeout %s: at most %s is allowed",
			o.Think, o.Stock, o.Timeout, o.Timeout/time.Duration(2*o.Stock))
	}
	return nil
}

// leastBuyers is the least number of buyers that leaves enough for the whole stock, whichever shop
// is killed: stock × shops / (shops − 1), rounded up.
func leastBuyers(shops, stock int) int { return (stock*shops + shops - 2) / (shops - 1) }

// shopBuyers is the number of buyers of shop i, from 0.
func (o Options) shopBuyers(i int) int {
	n := o.Buyers / o.Shops
	if i < o.Buyers%o.Shops {
		n++
	}
	return n
}

// pause is the time from one buyer of a shop to the next: that of a sale, so that buyers of all
// shops come faster than they are served, and queue in a mixed order. If there are many buyers it
// is shorter.
func (o Options) pause() time.Duration {
	return min(o.Think, allHere/time.Duration(o.shopBuyers(0)))
}

// killAt is the number of items left in the middle of the sale: the first shop that reads it is
// killed.
func (o Options) killAt() int { return (o.Stock + 1) / 2 }

// Run runs the sale twice, without and with a lock, and writes the report to w. It returns nil only
// if exactly the stock was sold under the lock. Errors match [ErrUsage] or [dlock.ErrInvalid] if
// the options are wrong, and the context's error if that ended the sale. When Run returns, the
// shops have ended and the temporary folder is removed.
func Run(ctx context.Context, o Options, w io.Writer) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("the demo did not end within %s (--timeout)", o.Timeout))
	defer cancel()
	dir, err := os.MkdirTemp("", "dlock-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	c := config{Name: "flash-sale/stock-" + rand.Text(), Think: o.Think, Pause: o.pause(), Shops: o.Shops, URL: o.URL}
	if c.URL == "" {
		c.URL = (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(dir, "locks"))}).String()
	}
	caps, err := capabilities(ctx, c)
	if err != nil {
		return o.advise(err)
	}
	c.TTL = ttlOption(o.URL, caps)
	s := newScreen(w)
	s.printf("%s: %d items, %d buyers, %d shops\n", s.bold("flash sale"), o.Stock, o.Buyers, o.Shops)
	s.printf("Each shop is a process; each sale reads the stock, thinks for %s, and writes it back.\n\n", short(o.Think))

	s.printf("%s\n", s.bold("without a lock"))
	bare := c
	bare.URL = ""
	r, err := phase(ctx, o, bare, filepath.Join(dir, "without"), s)
	if err != nil {
		return err
	}
	r.showBare(s)

	s.printf("\n%s (%s)\n", s.bold("under dlock"), caps.Backend)
	c.KillAt = o.killAt()
	r, err = phase(ctx, o, c, filepath.Join(dir, "under"), s)
	if err != nil {
		return err
	}
	return r.showLocked(s, caps)
}

// phase lets the shops sell a fresh stock.
func phase(ctx context.Context, o Options, c config, dir string, s *screen) (*result, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	c.Dir = dir
	if err := c.stock().write(o.Stock); err != nil {
		return nil, err
	}
	r, err := sell(ctx, o, c, s)
	s.endProgress()
	return r, err
}

// ttlOption is the TTL to request: 0 if the URL has one, or else the default, or the nearest to it
// that the backend allows.
func ttlOption(rawURL string, caps dlock.Capabilities) time.Duration {
	// package net/url does not parse a URL with several hosts; only the parameters matter
	_, query, _ := strings.Cut(rawURL, "?")
	if values, err := url.ParseQuery(query); err == nil && values.Has("ttl") {
		return 0
	}
	ttl := max(defaultTTL, caps.MinTTL)
	if caps.MaxTTL > 0 {
		ttl = min(ttl, caps.MaxTTL)
	}
	return ttl
}

// advise adds what to do to the error of a system where the default backend does not work.
func (o Options) advise(err error) error {
	if o.URL == "" && errors.Is(err, dlock.ErrUnsupported) {
		return fmt.Errorf("%w; give the demo a server, such as --url redis://localhost:6379", err)
	}
	return err
}

// capabilities reaches the backend once, before anything is shown, and refuses one that the shops
// cannot share.
func capabilities(ctx context.Context, c config) (dlock.Capabilities, error) {
	client, err := c.open(ctx)
	if err != nil {
		return dlock.Capabilities{}, err
	}
	defer client.Close()
	caps := client.Capabilities()
	if caps.Backend == "memory" {
		return caps, fmt.Errorf("%w: memory: works within one process only, but the shops are separate processes; "+
			"give --url file:///dir or a server, or no --url", ErrUsage)
	}
	return caps, nil
}
