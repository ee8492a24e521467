package redis

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
	for raw, want := range map[string]string{
		"redis://h":                       "[h:6379]   0   | 5s 3s 3s 0 false",
		"redis://h/":                      "[h:6379]   0   | 5s 3s 3s 0 false",
		"redis://h:7000/3":                "[h:7000]   3   | 5s 3s 3s 0 false",
		"redis://[::1]/0":                 "[[::1]:6379]   0   | 5s 3s 3s 0 false",
		"redis://[::1]:7000":              "[[::1]:7000]   0   | 5s 3s 3s 0 false",
		"redis://:secret@h":               "[h:6379]  secret 0   | 5s 3s 3s 0 false",
		"redis://user:p%40ss%2F@h:1/15":   "[h:1] user p@ss/ 15   | 5s 3s 3s 0 false",
		"rediss://h?tls_server_name=name": "[h:6379]   0   | 5s 3s 3s 0 true",
		"redis://h?dial_timeout=1s&read_timeout=2s&write_timeout=4s&pool_size=7": "[h:6379]   0   | 1s 2s 4s 7 false",
		"redis+cluster://u:p@a,b:1,[::2]":                                        "[a:6379 b:1 [::2]:6379] u p 0   | 5s 3s 3s 0 false",
		"rediss+cluster://a":                                                     "[a:6379]   0   | 5s 3s 3s 0 true",
		"redis+sentinel://u:p@a,b:1/main":                                        "[a:26379 b:1] u p 0 main  | 5s 3s 3s 0 false",
		"redis+sentinel://a/main/4?sentinel_username=su&sentinel_password=sp":    "[a:26379]   4 main su sp| 5s 3s 3s 0 false",
		"rediss+sentinel://a/main":                                               "[a:26379]   0 main  | 5s 3s 3s 0 true",
	} {
		s, err := parse(config(t, raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		got := fmt.Sprintf("%v %s %s %d %s %s %s| %s %s %s %d %t", s.hosts, s.conn.User, s.conn.Password, s.conn.DB, s.master, s.sentinelUser, s.sentinelPassword,
			s.conn.Dial, s.conn.Read, s.conn.Write, s.conn.PoolSize, s.conn.TLS != nil)
		if got != want {
			t.Errorf("%s is read as\n%s, want\n%s", raw, got, want)
		}
		if o := (Options{Prefix: "p", GrantWindow: 3 * time.Second, KeepTokens: 10 * time.Minute}); s.o != o {
			t.Errorf("%s has the options %+v, want %+v", raw, s.o, o)
		}
		if s.conn.TLS != nil && (s.conn.TLS.InsecureSkipVerify || strings.Contains(raw, "name=name") != (s.conn.TLS.ServerName == "name")) {
			t.Errorf("%s has the TLS configuration %+v", raw, s.conn.TLS)
		}
	}
	s, err := parse(config(t, "redis://h?grant_window=2s&keep_tokens=1h&wait_replicas=3"))
	if want := (Options{Prefix: "p", GrantWindow: 2 * time.Second, KeepTokens: time.Hour, WaitReplicas: 3}); err != nil || s.o != want {
		t.Errorf("the options are %+v, %v; want %+v", s.o, err, want)
	}
}

func TestURLErrors(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://":                                   "it has no host",
		"redis:///0":                                 "it has no host",
		"redis://a,b":                                "redis takes one host",
		"rediss://a,b":                               "rediss takes one host",
		"redis://h/x":                                "the path names the database",
		"redis://h/-1":                               "the path names the database",
		"redis://h/1/2":                              "too many parts",
		"redis+cluster://h/1":                        "a cluster has none",
		"redis+sentinel://h":                         "NAME-OF-THE-MASTER",
		"redis+sentinel://h/main/x":                  "the path names the database",
		"redis+sentinel://h/main/1/2":                "too many parts",
		"redis://h?dial_timeout=0s":                  "timeouts are positive",
		"redis://h?read_timeout=-1s":                 "timeouts are positive",
		"redis://h?write_timeout=0s":                 "timeouts are positive",
		"redis://h?pool_size=-1":                     "pool_size is not negative",
		"redis://h?pool_size=many":                   "want a whole number",
		"redis://h?read_timeout=3":                   "want a duration",
		"redis://h?grant_window=1ms":                 "the grant window is at least 10ms",
		"redis://h?keep_tokens=1us":                  "tokens are kept for at least 1ms",
		"redis://h?wait_replicas=-1":                 "replicas are not negative",
		"redis://h?sentinel_username=u":              "unknown parameter",
		"redis://h?tls_ca=f":                         "unknown parameter",
		"redis://h?nonsense=1":                       "valid are",
		"rediss://u:canary@h?tls_ca=/no/such/file":   "tls_ca: open",
		"rediss://u:canary@h?tls_ca=open_test.go":    "no certificate in PEM form",
		"rediss://u:canary@h?tls_key=f":              "go together",
		"rediss://u:canary@h?tls_cert=f&tls_key=f":   "tls_cert: open",
		"redis+sentinel://u:canary@h/m?min_uptime=1": "unknown parameter",
	} {
		_, err := open(t.Context(), config(t, raw))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %v; want one that matches ErrInvalid and says %q", raw, err, want)
		}
	}
}
