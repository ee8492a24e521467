package redlock

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// config reads a URL as package dlock does.
func config(t *testing.T, raw string) driver.Config {
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

func TestURL(t *testing.T) {
	hosts, s, o, err := parse(config(t, "redlock://user:pass@a,b:7000,[::1]/3?node_timeout=100ms&retry_delay=1s&min_uptime=1m&pool_size=4"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%v %s %s %d %d %v", hosts, s.User, s.Password, s.DB, s.PoolSize, s.TLS); got != "[a:6379 b:7000 [::1]:6379] user pass 3 4 <nil>" {
		t.Errorf("read as %s", got)
	}
	if want := (Options{Prefix: "p", NodeTimeout: 100 * time.Millisecond, RetryDelay: time.Second, MinUptime: time.Minute}); o != want {
		t.Errorf("read as %+v; want %+v", o, want)
	}
	hosts, s, _, err = parse(config(t, "redlocks://a,b,c,d,e?tls_server_name=n"))
	if err != nil || s.TLS == nil || len(hosts) != 5 {
		t.Errorf("read as %+v, %v", s, err)
	}
	for raw, want := range map[string]string{
		"redlock://a,b":                                 "at least 3 masters",
		"redlock://a,b,c/x":                             "the path must be the number of the database",
		"redlock://a,b,c/-1":                            "the path must be the number of the database",
		"redlock://a,b,c/1/2":                           "the path must be the number of the database",
		"redlock://a,b,c?node_timeout=0s":               "node_timeout and retry_delay must be positive",
		"redlock://a,b,c?retry_delay=-1s":               "node_timeout and retry_delay must be positive",
		"redlock://a,b,c?pool_size=-1":                  "pool_size must not be negative",
		"redlock://a,b,c?wait_replicas=1":               "valid are",
		"redlock://a,b,c?tls_ca=x":                      "unknown parameter",
		"redlock://a,b?format=setnx&key=lock:{name}":    "at least 3 masters",
		"redlock://a,b,c?format=redisson":               "want format=setnx",
		"redlock://a,b,c?format=setnx":                  "needs the key of each lock",
		"redlock://a,b,c?format=setnx&key=lock":         "{name} is there 0 times",
		"redlock://a,b,c?format=setnx&key=dlock:{name}": "begins with dlock:",
		"redlock://a,b,c?key=lock:{name}":               "the parameter key belongs to format=setnx",
		"redlock://a,b,c?min_uptime=x":                  "want a duration",
		"redlock://a,b,c?min_uptime=-1s":                "minimum uptime must not be negative",
		"redlock://a,b,a:6379":                          "a:6379 is named twice",
		"redlocks://a,b,c?tls_cert=x":                   "go together",
		"redlocks://u:canary@a,b,c?tls_ca=/no":          "tls_ca: open",
	} {
		_, err := open(t.Context(), config(t, raw))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %v; want one that matches ErrInvalid and says %q", raw, err, want)
		}
	}
}
