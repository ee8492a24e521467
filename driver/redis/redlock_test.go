package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// redlockConfig reads a URL as package dlock does.
func redlockConfig(t *testing.T, raw string) driver.Config {
	t.Helper()
	scheme, rest, _ := strings.Cut(raw, "://")
	end := strings.IndexAny(rest+"/", "/?")
	user, hosts := "", rest[:end]
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		user, hosts = hosts[:i+1], hosts[i+1:]
	}
	all := strings.Split(hosts, ",")
	u, err := url.Parse(scheme + "://" + user + all[0] + rest[end:])
	if err != nil {
		t.Fatal(err)
	}
	if all[0] == "" {
		all = nil
	}
	return driver.Config{URL: u, Hosts: all, Prefix: "p"}
}

func TestRedlockURL(t *testing.T) {
	s, o, err := parseRedlock(redlockConfig(t, "redlock://user:pass@a,b:7000,[::1]/3?node_timeout=100ms&retry_delay=1s&min_uptime=1m&pool_size=4"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%v %s %s %d %d %v", s.hosts, s.user, s.password, s.db, s.poolSize, s.tls); got != "[a:6379 b:7000 [::1]:6379] user pass 3 4 <nil>" {
		t.Errorf("read as %s", got)
	}
	if want := (RedlockOptions{Prefix: "p", NodeTimeout: 100 * time.Millisecond, RetryDelay: time.Second, MinUptime: time.Minute}); o != want {
		t.Errorf("read as %+v; want %+v", o, want)
	}
	s, _, err = parseRedlock(redlockConfig(t, "redlocks://a,b,c,d,e?tls_server_name=n"))
	if err != nil || s.tls == nil || s.tls.ServerName != "n" || s.tls.InsecureSkipVerify || len(s.hosts) != 5 {
		t.Errorf("read as %+v, %v", s, err)
	}
	for raw, want := range map[string]string{
		"redlock://a,b":                        "at least 3 masters",
		"redlock://a,b,c/x":                    "the path names the database",
		"redlock://a,b,c/-1":                   "the path names the database",
		"redlock://a,b,c/1/2":                  "the path names the database",
		"redlock://a,b,c?node_timeout=0s":      "node_timeout and retry_delay are positive",
		"redlock://a,b,c?retry_delay=-1s":      "node_timeout and retry_delay are positive",
		"redlock://a,b,c?pool_size=-1":         "pool_size is not negative",
		"redlock://a,b,c?wait_replicas=1":      "valid are",
		"redlock://a,b,c?tls_ca=x":             "unknown parameter",
		"redlock://a,b,c?min_uptime=x":         "want a duration",
		"redlock://a,b,c?min_uptime=-1s":       "least uptime is not negative",
		"redlock://a,b,a:6379":                 "a:6379 is named twice",
		"redlocks://a,b,c?tls_cert=x":          "go together",
		"redlocks://u:canary@a,b,c?tls_ca=/no": "tls_ca: open",
	} {
		_, err := openRedlock(t.Context(), redlockConfig(t, raw))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %v; want one that matches ErrInvalid and says %q", raw, err, want)
		}
	}
}

func masters(addrs ...string) []redis.UniversalClient {
	var cs []redis.UniversalClient
	for _, a := range addrs {
		cs = append(cs, redis.NewClient(&redis.Options{Addr: a}))
	}
	return cs
}

func TestNewRedlock(t *testing.T) {
	one := masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1")
	for _, bad := range [][]redis.UniversalClient{nil, one[:2], {one[0], one[1], one[0]}, masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1", "127.0.0.2:1")} {
		if _, err := NewRedlock(bad, RedlockOptions{}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%d masters: %v", len(bad), err)
		}
	}
	for _, bad := range []RedlockOptions{{NodeTimeout: -1}, {RetryDelay: time.Microsecond}, {MinUptime: -1}} {
		if _, err := NewRedlock(one, bad); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for n, need := range map[int]int{3: 2, 4: 3, 5: 3, 6: 4, 7: 4} {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprint("127.0.0.1:", i+1))
		}
		b, err := NewRedlock(masters(all...), RedlockOptions{})
		if err != nil || b.need != need || b.hopeless(n-need) || !b.hopeless(n-need+1) {
			t.Errorf("of %d masters %d are needed, %v; want %d", n, b.need, err, need)
		}
	}
	x, _ := NewRedlock(one, RedlockOptions{})
	y, _ := NewRedlock(masters("127.0.0.3:1", "127.0.0.1:1", "127.0.0.2:1"), RedlockOptions{})
	z, _ := NewRedlock(masters("127.0.0.3:1", "127.0.0.1:1", "127.0.0.2:1"), RedlockOptions{Prefix: "z"})
	if x.Capabilities() != y.Capabilities() || x.Capabilities() == z.Capabilities() {
		t.Errorf("identities %q, %q, %q", x.caps.Identity, y.caps.Identity, z.caps.Identity)
	}
	if got := x.timeout(time.Second); got != 100*time.Millisecond {
		t.Errorf("the node timeout of a TTL of 1s is %s", got)
	}
	if got := x.timeout(time.Hour); got != 250*time.Millisecond {
		t.Errorf("the node timeout of a TTL of 1h is %s", got)
	}
}

func TestRedlockRefusesWhatItCannot(t *testing.T) {
	b, err := NewRedlock(masters("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"), RedlockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id := driver.NewID()
	r := driver.Request{Name: "n", ID: id, Owner: id, Client: id, TTL: time.Second}
	shared, permit, join := r, r, r
	shared.Mode = driver.Shared
	permit.Mode, permit.Limit = driver.Shared, 2
	join.Owner = driver.NewID()
	for _, r := range []driver.Request{shared, permit, join} {
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("Acquire of %+v: %v", r, err)
		}
	}
	if len(b.ballots) != 0 {
		t.Errorf("%d requests are remembered", len(b.ballots))
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	_, acquire := b.Acquire(t.Context(), r)
	_, inspect := b.Inspect(t.Context(), "n")
	for what, err := range map[string]error{
		"Acquire": acquire, "Inspect": inspect, "Renew": b.Renew(t.Context(), []driver.Request{r})[0].Err,
		"Release": b.Release(t.Context(), r), "Break": b.Break(t.Context(), "n", 0, true),
	} {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

func TestSilenceIsNobodysTimeout(t *testing.T) {
	b, err := NewRedlock(masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"), RedlockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := b.silence(time.Second)
	e.said(0, nil)
	e.said(1, b.explain("n", &net.OpError{Op: "dial", Err: context.DeadlineExceeded}))
	if errors.Is(e, context.DeadlineExceeded) || errors.Is(e, context.Canceled) || errors.Is(e, driver.ErrHeld) {
		t.Errorf("%v matches the end of a context, or ErrHeld", e)
	}
	if want := "1 of 3 masters answered within 1s, and 2 have to; 127.0.0.2:1: no answer in time; 127.0.0.3:1: no answer in time"; e.Error() != want {
		t.Errorf("%q; want %q", e, want)
	}
}
