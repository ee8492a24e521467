package driver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// opener opens nothing, and returns the error.
func opener(err error) driver.Opener {
	return func(context.Context, driver.Config) (driver.Backend, error) { return nil, err }
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

func TestRegister(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	if driver.Lookup("test-b") != nil {
		t.Fatal("found before it was registered")
	}
	driver.Register("test-b", opener(first))
	driver.Register("test-a", opener(second))
	if !panics(func() { driver.Register("test-b", opener(second)) }) {
		t.Error("a scheme was registered twice")
	}
	if !panics(func() { driver.Register("test-nil", nil) }) {
		t.Error("no opener was registered")
	}
	if driver.Lookup("test-nil") != nil {
		t.Error("a refused scheme was kept")
	}
	if _, err := driver.Lookup("test-b")(t.Context(), driver.Config{}); err != first {
		t.Errorf("the first opener was replaced: %v", err)
	}
	if got := driver.Schemes(); !slices.IsSorted(got) || !slices.Contains(got, "test-a") || !slices.Contains(got, "test-b") {
		t.Errorf("Schemes: %v", got)
	}
}

// TestRegisterConcurrently is for the race detector: programs may look up while a plugin registers.
func TestRegisterConcurrently(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100 {
			driver.Register(fmt.Sprint("test-concurrent-", i), opener(nil))
		}
	}()
	for range 100 {
		driver.Schemes()
		driver.Lookup("test-concurrent-50")
	}
	<-done
}

// read reads a query as a driver with one parameter of each type would.
func read(t *testing.T, query string) (got params, err error) {
	t.Helper()
	u, err := url.Parse("test://host/?" + query)
	if err != nil {
		t.Fatal(err)
	}
	p := driver.Config{URL: u}.Params()
	got = params{p.String("text", "default"), p.Duration("wait", time.Second), p.Int("size", 7), p.Bool("tls", true)}
	return got, p.Err()
}

type params struct {
	text string
	wait time.Duration
	size int
	tls  bool
}

func TestParams(t *testing.T) {
	for query, want := range map[string]params{
		"":                              {"default", time.Second, 7, true},
		"text=":                         {"", time.Second, 7, true},
		"text=a%20b%26c":                {"a b&c", time.Second, 7, true},
		"wait=1m30s&size=-3&tls=false":  {"default", 90 * time.Second, -3, false},
		"tls=true&size=0&wait=0&text=x": {"x", 0, 0, true},
	} {
		if got, err := read(t, query); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", query, got, err, want)
		}
	}
}

func TestParamsRefused(t *testing.T) {
	const valid = "valid are identity, label, prefix, size, text, tls, ttl, wait"
	for query, want := range map[string]string{
		"size=1&size=2":             `parameter "size" is given 2 times`,
		"text=a&text=a&text=a":      `parameter "text" is given 3 times`,
		"wait=canary":               `parameter "wait": want a duration such as "30s"`,
		"wait=":                     `parameter "wait": want a duration`,
		"wait=30":                   `parameter "wait": want a duration`,
		"size=canary":               `parameter "size": want a whole number`,
		"size=1.5":                  `parameter "size": want a whole number`,
		"size=99999999999999999999": `parameter "size": want a whole number`,
		"size=":                     `parameter "size": want a whole number`,
		"tls=canary":                `parameter "tls": want true or false`,
		"tls=":                      `parameter "tls": want true or false`,
		"sise=canary":               `unknown parameter "sise"; ` + valid,
		"Text=canary":               `unknown parameter "Text"; ` + valid,
		"zz=canary&aa=canary":       `unknown parameter "aa", "zz"; ` + valid,
		// package dlock removes it before
		"ttl=canary":   `unknown parameter "ttl"`,
		"a%0Ab=canary": `unknown parameter "a\nb"; ` + valid,
		// the first error counts
		"zz=canary&size=canary":   `parameter "size": want a whole number`,
		"wait=canary&wait=canary": `parameter "wait" is given 2 times`,
		"size=canary&tls=canary":  `parameter "size": want a whole number`,
	} {
		_, err := read(t, query)
		switch {
		case !errors.Is(err, driver.ErrInvalid):
			t.Errorf("%q: %v does not match ErrInvalid", query, err)
		case !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v; want %s", query, err, want)
		case strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "99999"):
			t.Errorf("%q: %v shows a value", query, err)
		}
	}
}

// TestParamsKeepDefaults: a parameter that cannot be read has its default, so that a driver can
// read all parameters and call Err once.
func TestParamsKeepDefaults(t *testing.T) {
	for _, query := range []string{"wait=x", "size=x", "tls=x", "size=1&size=2", "text=a&text=b", "tls=false&tls=false"} {
		if got, err := read(t, query); err == nil || got != (params{"default", time.Second, 7, true}) {
			t.Errorf("%q: %v, %v", query, got, err)
		}
	}
}

// TestConfigShowsNoPassword puts a canary wherever a URL has room for one, and prints it in every
// way.
func TestConfigShowsNoPassword(t *testing.T) {
	u, err := url.Parse("redis://user:canary@host:6379/0?password=canary#canary")
	if err != nil {
		t.Fatal(err)
	}
	c := driver.Config{URL: u, Prefix: "p", TTL: time.Second, Client: driver.NewID(), Logger: slog.Default()}
	type nested struct{ C driver.Config }
	for _, v := range []any{
		c, &c, nested{c}, &nested{c}, []driver.Config{c}, []*driver.Config{&c}, map[string]driver.Config{"c": c},
		fmt.Errorf("open %v: %w", c, driver.ErrInvalid),
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			if text := fmt.Sprintf(verb, v); shows(text) {
				t.Errorf("%s of %T: %s", verb, v, text)
			}
		}
		var text bytes.Buffer
		slog.New(slog.NewTextHandler(&text, nil)).Info("m", "v", v, slog.Group("g", "v", v))
		if shows(text.String()) {
			t.Errorf("slog of %T: %s", v, text.String())
		}
	}
	for _, v := range []any{c, &c} {
		var text bytes.Buffer
		slog.New(slog.NewJSONHandler(&text, nil)).Info("m", "v", v, slog.Group("g", "v", v))
		if shows(text.String()) {
			t.Errorf("slog as JSON of %T: %s", v, text.String())
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, c); text != "driver.Config{redis:…}" {
			t.Errorf("%s: %s", verb, text)
		}
	}
	if text := fmt.Sprintf("%v %#v %s", driver.Config{}, driver.Config{}, driver.Config{}); strings.Contains(text, "PANIC") {
		t.Errorf("without a URL: %s", text)
	}
}

// shows finds the canary, as text and as %x writes it.
func shows(text string) bool {
	return strings.Contains(text, "canary") || strings.Contains(text, fmt.Sprintf("%x", "canary"))
}

func TestAddrs(t *testing.T) {
	c := driver.Config{Hosts: []string{"h", "h:1", "[::1]", "[::1]:2", "10.0.0.1"}}
	want := []string{"h:99", "h:1", "[::1]:99", "[::1]:2", "10.0.0.1:99"}
	if got := c.Addrs("99"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
