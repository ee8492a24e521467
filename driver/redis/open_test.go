package redis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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
		if s.conn.TLS == nil {
			continue
		}
		if c, err := s.conn.TLS.Config("a"); err != nil || c.InsecureSkipVerify || strings.Contains(raw, "name=name") != (c.ServerName == "name") {
			t.Errorf("%s has the TLS configuration %+v, %v", raw, c, err)
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
		"redis://h/x":                                "the path must be the number of the database",
		"redis://h/-1":                               "the path must be the number of the database",
		"redis://h/1/2":                              "too many parts",
		"redis+cluster://h/1":                        "a Cluster has no databases",
		"redis+sentinel://h":                         "NAME-OF-THE-MASTER",
		"redis+sentinel://h/main/x":                  "the path must be the number of the database",
		"redis+sentinel://h/main/1/2":                "too many parts",
		"redis://h?dial_timeout=0s":                  "write_timeout must be positive",
		"redis://h?read_timeout=-1s":                 "write_timeout must be positive",
		"redis://h?write_timeout=0s":                 "write_timeout must be positive",
		"redis://h?pool_size=-1":                     "pool_size must not be negative",
		"redis://h?pool_size=many":                   "want a whole number",
		"redis://h?read_timeout=3":                   "want a duration",
		"redis://h?grant_window=1ms":                 "the grant window must be at least 10ms",
		"redis://h?keep_tokens=1us":                  "tokens must be kept for at least 1ms",
		"redis://h?wait_replicas=-1":                 "the number of replicas must not be negative",
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

// standIn starts a server that sends what answer returns for each command, and closes the
// connection if that is "".
func standIn(t *testing.T, answer func(command string) string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					words := 0
					if _, err := fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
						return
					}
					command := ""
					for i := range words {
						n := 0
						if _, err := fmt.Fscanf(in, "$%d\r\n", &n); err != nil {
							return
						}
						word := make([]byte, n+2)
						if _, err := io.ReadFull(in, word); err != nil {
							return
						}
						if i == 0 {
							command = strings.ToLower(string(word[:n]))
						}
					}
					said := answer(command)
					if said == "" {
						return
					}
					if _, err := io.WriteString(conn, said); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// TestServersThatWillNotDo: a server that is no Redis, or cannot run scripts, is reported as that
// by Open and by a client made with New.
func TestServersThatWillNotDo(t *testing.T) {
	unknown := func(commands ...string) func(string) string {
		return func(c string) string {
			if slices.Contains(commands, c) {
				return "-ERR unknown command '" + c + "'\r\n"
			}
			return "+OK\r\n"
		}
	}
	for _, tt := range []struct {
		what, says string
		answer     func(string) string
	}{
		{"a proxy that closes the connection", "twemproxy", func(string) string { return "" }},
		{"a proxy that knows no scripts", "7 or newer", unknown("hello", "client", "eval", "evalsha")},
		{"an old server", "7 or newer", func(c string) string {
			switch c {
			case "evalsha":
				return "-NOSCRIPT No matching script. Please use EVAL.\r\n"
			case "eval":
				return "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n"
			}
			return unknown("hello")(c)
		}},
		{"a web server", "does not speak the protocol of Redis", func(string) string { return "HTTP/1.1 400 Bad Request\r\n\r\n" }},
		{"a replica", "the address of the master", func(c string) string {
			if c == "evalsha" {
				return "-READONLY You can't write against a read only replica.\r\n"
			}
			return unknown("hello")(c)
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			addr := standIn(t, tt.answer)
			b, err := open(t.Context(), config(t, "redis://"+addr))
			if err == nil {
				b.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Open: %v; want that it says %q", err, tt.says)
			}
			rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
			defer rdb.Close()
			over, err := New(rdb, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer over.Close()
			id := driver.NewID()
			_, err = over.Acquire(t.Context(), driver.Request{Name: "a", ID: id, Owner: id, Client: driver.NewID(), TTL: time.Second})
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Acquire: %v; want that it says %q", err, tt.says)
			}
		})
	}
}

// TestUnknownThenRefused: a copy whose outcome is unknown is not forgotten because the next one was
// certainly not executed: the request is released, with a tombstone.
func TestUnknownThenRefused(t *testing.T) {
	var asked atomic.Int32
	addr := standIn(t, func(c string) string {
		switch {
		case c == "hello":
			return "-ERR unknown command 'hello'\r\n"
		case c != "evalsha":
			return "+OK\r\n"
		case asked.Add(1) == 1:
			return "" // the connection is lost
		}
		return "-LOADING Redis is loading the dataset in memory\r\n"
	})
	rdb := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2})
	defer rdb.Close()
	b, err := New(rdb, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	id := driver.NewID()
	_, err = b.Acquire(t.Context(), driver.Request{Name: "a", ID: id, Owner: id, Client: driver.NewID(), TTL: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "LOADING") {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if m, is := b.requests.Find(id); !is || !m.Uncertain {
		t.Error("a request that may stand there is forgotten")
	}
}

// TestARefusalNamesTheHolder: the error has the label and the age of the holder. The text of a
// label does not affect how the error is explained.
func TestARefusalNamesTheHolder(t *testing.T) {
	const label = "worker with args beginning with: WRONGTYPE"
	addr := standIn(t, func(c string) string {
		switch c {
		case "hello":
			return "-ERR unknown command 'hello'\r\n"
		case "evalsha":
			return fmt.Sprintf("*4\r\n:-1\r\n$4\r\nheld\r\n$%d\r\n%s\r\n:1500000\r\n", len(label), label)
		}
		return "+OK\r\n"
	})
	rdb := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2})
	defer rdb.Close()
	b, err := New(rdb, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	id := driver.NewID()
	_, err = b.Acquire(t.Context(), driver.Request{Name: "a", ID: id, Owner: id, Client: driver.NewID(), TTL: time.Minute})
	by := (*driver.HeldError)(nil)
	if !errors.Is(err, driver.ErrHeld) || !errors.As(err, &by) || *by != (driver.HeldError{Label: label, Age: 1500 * time.Millisecond}) {
		t.Errorf("%v, by %+v", err, by)
	}
}
