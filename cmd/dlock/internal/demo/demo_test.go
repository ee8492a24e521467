package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

var small = Options{Shops: 3, Buyers: 60, Stock: 20, Think: time.Millisecond, Timeout: time.Minute}

func TestCheck(t *testing.T) {
	change := func(f func(*Options)) Options {
		o := small
		f(&o)
		return o
	}
	for _, c := range []struct {
		o    Options
		want string // empty: allowed
	}{
		{small, ""},
		{change(func(o *Options) { o.Shops = 0 }), "--shops 0: 2 to 100"},
		{change(func(o *Options) { o.Shops = 1 }), "--shops 1: 2 to 100"},
		{change(func(o *Options) { o.Shops = 101 }), "--shops 101: 2 to 100"},
		{change(func(o *Options) { o.Stock = 0 }), "--stock 0: 1 to 50000"},
		{change(func(o *Options) { o.Stock = -1 }), "--stock -1: 1 to 50000"},
		{change(func(o *Options) { o.Buyers = 29 }), "30 to 100000"},
		{change(func(o *Options) { o.Buyers = 30 }), ""},
		{change(func(o *Options) { o.Buyers = 100_001 }), "30 to 100000"},
		{change(func(o *Options) { o.Think = -1 }), "--think -1ns: 0s or more"},
		{change(func(o *Options) { o.Think = 0 }), ""},
		{change(func(o *Options) { o.Think = 1500 * time.Millisecond }), ""},
		{change(func(o *Options) { o.Think = 1501 * time.Millisecond }), "at most 1.5s"},
		{change(func(o *Options) { o.Timeout = 0 }), "--timeout 0s: more than 0s"},
	} {
		err := c.o.check()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.o, err)
		case c.want != "" && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

// TestLeastBuyers checks the formula: enough buyers are left, whichever shop is killed, and one
// buyer less would be too few.
func TestLeastBuyers(t *testing.T) {
	left := func(shops, buyers int) int { // after the shop with the most buyers is gone
		o := Options{Shops: shops, Buyers: buyers}
		sum, most := 0, 0
		for i := range shops {
			n := o.shopBuyers(i)
			sum, most = sum+n, max(most, n)
		}
		if sum != buyers {
			t.Fatalf("%d buyers in %d shops became %d", buyers, shops, sum)
		}
		return sum - most
	}
	for shops := 2; shops <= 12; shops++ {
		for stock := 1; stock <= 60; stock++ {
			n := leastBuyers(shops, stock)
			if left(shops, n) < stock || left(shops, n-1) >= stock {
				t.Errorf("%d shops, stock %d: least buyers %d", shops, stock, n)
			}
		}
	}
}

func TestTTLOption(t *testing.T) {
	for url, want := range map[string]time.Duration{
		"": defaultTTL, "file:///x": defaultTTL, "file:///x?prefix=ttl": defaultTTL, "file:///x?ttl=9s": 0, "://": defaultTTL,
		"zk://a:1,b:2/x?ttl=9s": 0,
	} {
		if got := ttlOption(url, dlock.Capabilities{MinTTL: time.Second}); got != want {
			t.Errorf("%q: %s, want %s", url, got, want)
		}
	}
	if got := ttlOption("", dlock.Capabilities{MinTTL: time.Minute}); got != time.Minute {
		t.Errorf("where a minute is the least: %s", got)
	}
	if got := ttlOption("", dlock.Capabilities{MaxTTL: time.Second}); got != time.Second {
		t.Errorf("where a second is the most: %s", got)
	}
}

// runDemo runs the demo with its temporary files in a folder of the test, and wants none to stay.
func runDemo(t *testing.T, ctx context.Context, o Options) (page string, err error) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var w strings.Builder
	err = Run(ctx, o, &w)
	rest, readErr := os.ReadDir(dir)
	if readErr != nil {
		t.Fatal(readErr)
	}
	for _, e := range rest {
		t.Error("left behind:", e.Name())
	}
	return w.String(), err
}

func TestRunSellsExactlyTheStock(t *testing.T) {
	page, err := runDemo(t, t.Context(), small)
	if err != nil {
		t.Fatalf("%v\n%s", err, page)
	}
	for _, want := range []string{
		"the stock was 20: oversold by ", "is killed in the middle of sale 11", "sold 20, the stock was 20: oversold by 0",
		"takeover", "p50", "p99", "per second", "(killed)", "grew strictly", "21 checked", "file: order of arrival",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "\x1b") || strings.Contains(page, "\r") {
		t.Errorf("control characters on what is no terminal: %q", page)
	}
}

// TestRunFailsWhereTheLockDoesNotLock is the proof that the demo can fail.
func TestRunFailsWhereTheLockDoesNotLock(t *testing.T) {
	t.Setenv(fault, "no lock")
	page, err := runDemo(t, t.Context(), small)
	if err == nil || !strings.Contains(err.Error(), "under the lock, the stock was 20: oversold by") {
		t.Errorf("%v\n%s", err, page)
	}
	if !strings.Contains(page, err.Error()) {
		t.Errorf("the page does not say %q:\n%s", err, page)
	}
}

func TestRunReportsAShopThatFails(t *testing.T) {
	for what, want := range map[string][]string{
		"no backend": {"shop ", "no such backend"},
		"panic":      {"shop ", "ended unexpectedly", "exit status 2", "panic: out of order"},
		"exit":       {"shop ", "ended unexpectedly", "exit status 0"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Setenv(fault, what)
			page, err := runDemo(t, t.Context(), small)
			for _, w := range want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("%v, want %q\n%s", err, w, page)
				}
			}
		})
	}
}

func TestRunNeverHangs(t *testing.T) {
	t.Setenv(fault, "hang")
	o := small
	o.Timeout = 2 * time.Second
	begin := time.Now()
	_, err := runDemo(t, t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "did not end within 2s") {
		t.Error(err)
	}
	if d := time.Since(begin); d > o.Timeout+closeWithin+20*time.Second {
		t.Error("took", d)
	}
}

// noticed is a page that cancels once it has a given text.
type noticed struct {
	strings.Builder
	text   string
	cancel func()
}

func (n *noticed) Write(b []byte) (int, error) {
	n.Builder.Write(b)
	if strings.Contains(n.Builder.String(), n.text) {
		n.cancel()
	}
	return len(b), nil
}

func TestRunEndsWithItsContext(t *testing.T) {
	for _, text := range []string{"without a lock", "under dlock", "under dlock (file)\n  4 of 20 sold"} {
		ctx, cancel := context.WithCancel(t.Context())
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		err := Run(ctx, small, &noticed{text: text, cancel: cancel})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled at %q: %v", text, err)
		}
		if es, _ := os.ReadDir(dir); len(es) > 0 {
			t.Errorf("cancelled at %q: %v is left behind", text, es)
		}
	}
}

func TestRunRefusesBackends(t *testing.T) {
	for url, want := range map[string]error{
		"memory:":                 ErrUsage,
		"memory:x":                ErrUsage,
		"nosuch://u:canary@h/":    dlock.ErrInvalid,
		"file:///x?nosuch=canary": dlock.ErrInvalid,
		"file:///x?ttl=canary":    dlock.ErrInvalid,
	} {
		o := small
		o.URL = url
		page, err := runDemo(t, t.Context(), o)
		if !errors.Is(err, want) || page != "" {
			t.Errorf("%s: %v, %q", url, err, page)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: shown in %v", url, err)
		}
	}
}

func TestRunTakesTheURL(t *testing.T) {
	o := small
	o.URL = fmt.Sprintf("file://%s?ttl=5s", t.TempDir())
	if page, err := runDemo(t, t.Context(), o); err != nil {
		t.Errorf("%v\n%s", err, page)
	}
}

// TestAShopEndsWithItsInput: a shop learns from the end of its input that its coordinator is gone.
func TestAShopEndsWithItsInput(t *testing.T) {
	c := config{Dir: t.TempDir(), Shop: 1, Buyers: 1, Think: time.Hour}
	if err := c.stock().write(1); err != nil {
		t.Fatal(err)
	}
	in, orders := io.Pipe()
	events, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer out.Close()
		ended <- Shop(in, out)
	}()
	say := json.NewEncoder(orders)
	for _, what := range []any{c, start} {
		if err := say.Encode(what); err != nil {
			t.Fatal(err)
		}
		var e event // ready; then held, when it begins to think
		if err := json.NewDecoder(events).Decode(&e); err != nil {
			t.Fatal(err)
		}
	}
	go io.Copy(io.Discard, events)
	orders.Close()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "ended the sale") {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
}

func TestShopByHand(t *testing.T) {
	for _, in := range []string{"", "hello", `{"Buyers":1}`, `{"Buyers":1} "stop"`} {
		if err := Shop(strings.NewReader(in), io.Discard); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}

// Where the default backend does not work, the demo says what to do, in one line.
func TestSystemWithoutABackend(t *testing.T) {
	refused := fmt.Errorf("open file: %w: needs another system", dlock.ErrUnsupported)
	err := Options{}.advise(refused)
	if !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), "--url redis://") || strings.Contains(err.Error(), "\n") {
		t.Errorf("without --url: %v", err)
	}
	for _, o := range []Options{{URL: "file:///x"}, {}} {
		other := refused
		if o.URL == "" {
			other = io.ErrUnexpectedEOF
		}
		if err := o.advise(other); err != other {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
