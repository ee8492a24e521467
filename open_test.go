package dlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// canary is a password that must never be seen.
const canary = "c4n@ry/p%ss?#"

var errRefused = errors.New("refused")

func init() {
	// A driver that fails, and shows all that it may.
	driver.Register("leaky", func(_ context.Context, c driver.Config) (driver.Backend, error) {
		return nil, fmt.Errorf("dial %s: %v %+v %#v: %w", c.Hosts, c, c, c, errRefused)
	})
	driver.Register("hosts", func(_ context.Context, c driver.Config) (driver.Backend, error) {
		return nil, fmt.Errorf("%q", c.Hosts)
	})
	driver.Register("slow", func(ctx context.Context, c driver.Config) (driver.Backend, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("dial %s: %w", c.URL.Host, errRefused)
	})
	driver.Register("none", func(context.Context, driver.Config) (driver.Backend, error) { return nil, nil })
	driver.Register("plain", func(_ context.Context, c driver.Config) (driver.Backend, error) {
		p := c.Params()
		p.Duration("session_timeout", time.Second)
		p.Int("n", 0)
		return newMemory(nil), p.Err()
	})
}

func TestOpenRefuses(t *testing.T) {
	for _, tt := range []struct{ url, says string }{
		{"", "the URL is empty"},
		{"memory", "did you mean memory:…?"},
		{"nosuch", "not a URL; want scheme://"},
		{"tmp/locks", "file:///absolute/path"},
		{"/tmp/locks", "did you mean file:///tmp/locks?"},
		{"nosuch://h", "driver/all"},
		{"nosuch://h", "memory"}, // the known ones are listed
		{"localhost:6379", "no scheme; did you mean redis://localhost:6379?"},
		{"localhost:3306/shop?timeout=1s", "no scheme; did you mean mysql://localhost:3306?"},
		{"localhost:5432/shop", "no scheme; did you mean postgres://localhost:5432?"},
		{"10.0.0.5:2181,10.0.0.6:2181/locks", "no scheme; did you mean zookeeper://10.0.0.5:2181?"},
		{"[::1]:2379", "no scheme; did you mean etcd://[::1]:2379?"},
		{"redis:6379", "no scheme; did you mean redis://redis:6379?"},
		{"locks.example.com:7000", "no scheme; did you mean something like redis://locks.example.com:7000?"},
		{"/var/lib/shop/locks?ttl=30s", "no scheme; did you mean file:///var/lib/shop/locks?"},
		{"user:6379", "no scheme"},
		{"/a:canary@b", "not a URL"},
		{"file:///a,redis://:canary@h", "OLD and NEW, have white space between"},
		{"file:/a,redis://:canary@h", "OLD and NEW, have white space between"},
		{"memory:a,redis://:canary@h", "OLD and NEW, have white space between"},
		{"redis://:canary@h:6379/0,etcd://h:2379", "OLD and NEW, have white space between"},
		{"app:6543,canary@db:3306", "not a URL"},
		{"app:6543/canary@tcp(db:3306)/shop", "not a URL"},
		{"redis://h", `import _ "github.com/dlock-go/dlock/driver/redis"`},
		{"rediss+sentinel://h", `import _ "github.com/dlock-go/dlock/driver/redis"`},
		{"mariadb://h", `import _ "github.com/dlock-go/dlock/driver/mysql"`},
		{"postgresql://h", `import _ "github.com/dlock-go/dlock/driver/postgres"`},
		{"zks://h", `import _ "github.com/dlock-go/dlock/driver/zookeeper"`},
		{"reids://h", `did you mean "redis"? Its driver is not imported; import _ "github.com/dlock-go/dlock/driver/redis"`},
		{"memroy:a", `did you mean "memory"?`},
		{"memory:a?ttl=0", "24h"},
		{"memory:a?ttl=-1s", "24h"},
		{"memory:a?ttl=25h", "24h"},
		{"memory:a?ttl=1ns", "24h"},
		{"memory:a?ttl=soon", "duration"},
		{"memory:a?ttl=30", "duration"},
		{"memory:a?ttl=1s&ttl=2s", "2 times"},
		{"plain:a?session_timeout=1s&session_timeout=2s", "2 times"},
		{"plain:a?n=x", "whole number"},
		{"plain:a?tll=1s", "identity, label, n, prefix, session_timeout, ttl"},
		{"memory:a?x=1", "identity, label, prefix, ttl"},
		{"memory:a?ttl=1s;x=2", "well-formed"},
		{"memory:a?ttl=%zz", "well-formed"},
		{"memory://h1:1,:x", "not a URL"},
		{"memory://h1:1,,h2", "not a URL"},
		{"memory:a#b", "fragment"},
		{"memory:a?label=" + strings.Repeat("x", 256), "255"},
		{"memory:a?prefix=%00", "control"},
		{"memory:a?identity=%ff", "UTF-8"},
	} {
		c, err := dlock.Open(t.Context(), tt.url)
		if !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), tt.says) || c != nil {
			t.Errorf("Open(%q): %v; want ErrInvalid that says %q", tt.url, err, tt.says)
		}
	}
	// names, and no ports
	for _, opaque := range []string{"memory:6379", "MEMORY:1234", "plain:6379", "Plain:1234"} {
		c, err := dlock.Open(t.Context(), opaque)
		if err != nil {
			t.Errorf("Open(%q): %v", opaque, err)
			continue
		}
		c.Close()
	}
	if c, err := dlock.Open(t.Context(), "none:"); err == nil || c != nil || !strings.Contains(err.Error(), "no backend") {
		t.Errorf("a driver that returns nothing: %v, %v", c, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dlock.Open(over, "memory:a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := dlock.New(nil); !errors.Is(err, dlock.ErrInvalid) {
		t.Error(err)
	}
	if _, err := dlock.New(newMemory(nil), dlock.TTL(0)); !errors.Is(err, dlock.ErrInvalid) {
		t.Error(err)
	}
}

// What a message says is allowed is allowed, and can be read.
func TestTheLeastTTLIsReadable(t *testing.T) {
	b := &coarse{newMemory(nil)}
	_, err := dlock.New(b, dlock.TTL(2*time.Second))
	if !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), "2.251s to 27.999s") {
		t.Error(err)
	}
	if c, err := dlock.New(b, dlock.TTL(2251*time.Millisecond)); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// newMemory returns a backend of the space, or of its own one if that is nil.
func newMemory(space *memory.Space) *memory.Backend {
	b, err := memory.New(memory.Options{Space: space})
	if err != nil {
		panic(err)
	}
	return b
}

type coarse struct{ *memory.Backend }

func (b *coarse) Capabilities() driver.Capabilities {
	caps := b.Backend.Capabilities()
	caps.MinTTL, caps.MaxTTL = 2250*time.Millisecond+1, 28*time.Second-1
	return caps
}

// failing is a backend that is down.
func TestWhatIsPermanent(t *testing.T) {
	for _, again := range []error{nil, dlock.ErrHeld, dlock.ErrLost, dlock.ErrConflict, dlock.ErrNotHeld, context.Canceled, errRefused} {
		if dlock.IsPermanent(again) {
			t.Errorf("%v is permanent", again)
		}
	}
	for _, never := range []error{dlock.ErrInvalid, dlock.ErrInvalidName, dlock.ErrUnsupported, dlock.ErrClosed, dlock.ErrUpgrade} {
		if !dlock.IsPermanent(fmt.Errorf("a reason: %w", never)) {
			t.Errorf("%v is not permanent", never)
		}
	}
}

func TestOpenGivesTheDriverAllHosts(t *testing.T) {
	for raw, want := range map[string][]string{
		"hosts://u:p%2F@h1:1,h2,[::1]:3,[fe80::1]/path?n=1": {"h1:1", "h2", "[::1]:3", "[fe80::1]"},
		"hosts://h1?n=1":  {"h1"},
		"hosts:///path":   nil,
		"hosts:path?n=//": nil,
		"hosts:a?n=x://y": nil,
	} {
		if _, err := dlock.Open(t.Context(), raw); err == nil || err.Error() != fmt.Sprintf("dlock: open (hosts): %q", want) {
			t.Errorf("%s: %v; want %q", raw, err, want)
		}
	}
}

func TestOptionsCountMoreThanTheURL(t *testing.T) {
	c, err := dlock.Open(t.Context(), "memory:options?ttl=5s&label=url&prefix=p/&identity=k", dlock.TTL(7*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q, err := c.Inspect(t.Context(), "a")
	if err != nil || len(q.Holders) != 1 {
		t.Fatal(q, err)
	}
	if h := q.Holders[0]; h.TTL != 7*time.Second || h.Label != "url" || h.Token != l.Token() {
		t.Errorf("holder %+v", h)
	}
	// Another prefix is another lock; no prefix is the literal name.
	other, err := dlock.Open(t.Context(), "memory:options")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Mutex("a").TryLock(t.Context()); err != nil {
		t.Error("without prefix:", err)
	}
	if _, err := other.Mutex("p/a").TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
		t.Error("the literal name:", err)
	}
}

func TestNoPasswordIsEverShown(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	esc := url.QueryEscape(canary)
	check := func(what, s string) {
		t.Helper()
		for _, secret := range []string{canary, esc, url.PathEscape(canary), "c4n", "p%ss"} {
			if strings.Contains(s, secret) {
				t.Errorf("%s shows the password: %s", what, s)
			}
		}
	}
	for _, raw := range []string{
		"leaky://user:" + esc + "@h:1/x",
		"leaky://user:" + canary + "@h:1/x",     // not percent-encoded
		"leaky://user:" + esc + "@h:port/x",     // a bad port
		"leaky://user:" + esc + "@h:1/%zz",      // a bad escape
		"nosuch://user:" + esc + "@h",           // unknown
		"://user:" + esc + "@h",                 // no scheme
		"leaky://user:" + esc + "@[::1/",        // a bad host
		"leaky://user:" + esc + "@h\x7f",        // a control character
		"leaky://user:" + esc + "@h?ttl=banana", // a bad parameter
		"memory://user:" + esc + "@h/x",
		"memory:a?password=" + esc,
		"memory:a?ttl=" + esc,
		"plain:a?n=" + esc,
		"leaky://user:12/" + canary + "@h:1/x", // the password's first part is a port
		"leaky://user:12?" + canary + "@h:1/x",
		"plain://user:12?" + canary + "@h:1/x",
		"plain://user:" + esc + "@h:1?n=" + esc,
	} {
		_, err := dlock.Open(t.Context(), raw, dlock.Logger(logger))
		if err == nil {
			t.Errorf("%s was opened", raw)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			check("the error", fmt.Sprintf("%v %+v %#v %q", e, e, e, e))
		}
	}
	u, _ := url.Parse("memory://user:" + esc + "@h")
	cfg := driver.Config{URL: u, Prefix: "p"}
	check("Config", fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, cfg))
	check("&Config", fmt.Sprintf("%v %+v %#v %s", &cfg, &cfg, &cfg, &cfg))
	logger.Info("config", "c", cfg, "p", &cfg)

	c, err := dlock.Open(t.Context(), "plain://user:"+esc+"@h", dlock.Logger(logger))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	logger.Info("client", "c", c)
	check("Client", fmt.Sprintf("%v %+v %#v %s", c, c, c, c))
	check("the log", log.String())
}

func TestErrorIsWrappedOnce(t *testing.T) {
	space := new(memory.Space)
	c, err := dlock.New(newMemory(space))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := dlock.New(newMemory(space), dlock.Label("till 4"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.Mutex("a").Lock(t.Context())
	_, err = c.Mutex("a").TryLock(t.Context())
	if got, want := err.Error(), `dlock: trylock "a" (memory): held by another owner, "till 4", whose request arrived `; !strings.HasPrefix(got, want) {
		t.Errorf("%s; want %s…", got, want)
	}
	var e *dlock.Error
	if !errors.As(err, &e) || e.Op != "trylock" || e.Name != "a" || e.Backend != "memory" || !errors.Is(e.Err, dlock.ErrHeld) {
		t.Errorf("%#v", e)
	}
	if !errors.Is(dlock.ErrInvalidName, dlock.ErrInvalid) {
		t.Error("ErrInvalidName does not match ErrInvalid")
	}
}

func TestOpenThatTimedOutSaysSo(t *testing.T) {
	for url, also := range map[string]error{"slow://h": errRefused, "slow://u:secret@h": context.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) { // so that the context lives until the driver gets it
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := dlock.Open(ctx, url)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, also) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", url, err)
			}
		})
	}
}

// A password that is part of every text changes none, and no error: hiding it would reveal it.
func TestAPasswordThatIsAWordIsNotHiddenInTexts(t *testing.T) {
	want, err := dlock.Open(t.Context(), "leaky://u@con.example:1/x")
	for _, password := range []string{"con", "1", "a", "refused", "leaky", ":"} {
		c, got := dlock.Open(t.Context(), "leaky://u:"+url.QueryEscape(password)+"@con.example:1/x")
		if c != want || got.Error() != err.Error() || !errors.Is(got, errRefused) {
			t.Errorf("password %q: %v, want %v", password, got, err)
		}
	}
}

func TestTheDefaultLabelIsAlwaysValid(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	for _, args := range [][]string{nil, {strings.Repeat("é", 200)}, {"a\nb\xff"}} {
		os.Args = args
		c, err := dlock.New(newMemory(nil))
		if err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		c.Close()
	}
}
