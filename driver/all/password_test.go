package all_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// urls returns a URL for each scheme of a service, with the password and the address in it.
func urls(password, addr string) map[string]string {
	at := map[string]string{}
	for _, scheme := range driver.Schemes() {
		place := url.UserPassword("user", password).String() + "@" + addr
		switch {
		case scheme == "memory" || scheme == "file":
			continue
		case strings.HasPrefix(scheme, "redlock"):
			place += ",127.0.0.1:3,127.0.0.1:4"
		case strings.HasSuffix(scheme, "+sentinel"):
			place += "/master?sentinel_password=" + url.QueryEscape(password)
		case strings.HasPrefix(scheme, "mysql") || strings.HasPrefix(scheme, "mariadb") || strings.HasPrefix(scheme, "postgres"):
			place += "/locks"
		}
		at[scheme] = scheme + "://" + place
	}
	return at
}

// withParameter adds a parameter to a URL.
func withParameter(raw, parameter string) string {
	if strings.Contains(raw, "?") {
		return raw + "&" + parameter
	}
	return raw + "?" + parameter
}

// overTLS is the name of the service that is reached over TLS.
const overTLS = "a Redis over TLS without AUTH and HELLO"

// services returns the addresses of listeners that are not the services which drivers expect, and
// the parameter of a URL for the one that is reached over TLS.
func services(t *testing.T) (at map[string]string, secure string) {
	t.Helper()
	at = map[string]string{"nothing": "127.0.0.1:1"}
	certified := httptest.NewTLSServer(nil)
	t.Cleanup(certified.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certified.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, serve := range map[string]func(net.Conn){
		"an echo":                        func(c net.Conn) { io.Copy(c, c) },
		"a web server":                   func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") },
		"a server that hangs up":         func(net.Conn) {},
		"a Redis without AUTH and HELLO": refuse,
		overTLS:                          func(c net.Conn) { refuse(tls.Server(c, certified.TLS)) },
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					serve(c)
				}()
			}
		}()
		at[what] = l.Addr().String()
	}
	return at, "tls_ca=" + url.QueryEscape(ca)
}

// refuse answers each command of Redis as one that it does not know.
func refuse(c net.Conn) {
	for in := bufio.NewReader(c); ; {
		var args []string
		line, err := in.ReadString('\n')
		n := 0
		fmt.Sscanf(line, "*%d", &n)
		for range n {
			in.ReadString('\n')
			arg, _ := in.ReadString('\n')
			args = append(args, strings.TrimSpace(arg))
		}
		if err != nil || n == 0 {
			return
		}
		fmt.Fprintf(c, "-ERR unknown command '%s', with args beginning with: '%s' \r\n", args[0], strings.Join(args[1:], "' '"))
	}
}

// canary is a password.
const canary = `c4n@ry/p%ss?#"'`

// show fails the test if s has the password in it, or a part of that.
func show(t *testing.T, what, s string) {
	t.Helper()
	for _, f := range []string{canary, url.QueryEscape(canary), url.PathEscape(canary), "c4n", "ry/p", "p%ss", "p%25ss", "c4n@ry"} {
		if strings.Contains(s, f) {
			t.Errorf("%s shows the password: %s", what, s)
			return
		}
	}
}

// inChild is set in a process whose output is searched.
const inChild = "DLOCK_TEST_PASSWORD_CHILD"

// TestNoDriverShowsThePassword opens and checks URLs that fail in every way, and searches for the
// password in all output: errors in every form, their chains, findings, the log; and what client
// libraries write by themselves, for which it runs in a process of its own.
func TestNoDriverShowsThePassword(t *testing.T) {
	if os.Getenv(inChild) == "" {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), inChild+"=yes")
		out, err := c.CombinedOutput()
		if show(t, "the output", string(out)); err != nil && !t.Failed() {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	at, secure := services(t)
	for what, addr := range at {
		for scheme, raw := range urls(canary, addr) {
			if what == overTLS {
				if !strings.HasPrefix(scheme, "rediss") && scheme != "redlocks" {
					continue
				}
				raw = withParameter(raw, secure)
			}
			t.Run(scheme+" at "+what, func(t *testing.T) {
				t.Parallel()
				tries := []string{raw}
				if what == "nothing" {
					plain := strings.Replace(raw, url.UserPassword("user", canary).String(), "user:"+canary, 1)
					tries = append(tries, plain, strings.Replace(raw, ":1", ":port", 1), raw+"%zz", raw+"/%zz", raw+"#x", raw+"\x7f",
						strings.Replace(raw, "127.0.0.1:1", "[::1", 1), withParameter(raw, "ttl=banana"), withParameter(raw, "nosuch=1"), withParameter(raw, "ttl=0"),
						withParameter(raw, "tls_ca=/nosuch"), raw+"/a/b/c", strings.Replace(raw, "user:", "user:12/", 1), strings.Replace(raw, "user:", "user:12?", 1))
				}
				var log bytes.Buffer
				logger := dlock.Logger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
				for _, raw := range tries {
					ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
					c, err := dlock.Open(ctx, raw, logger)
					if err == nil {
						c.Close()
						t.Errorf("%s was opened", raw)
					}
					all(err, func(e error) { show(t, "Open", fmt.Sprintf("%v %+v %#v %q", e, e, e, e)) })
					found, err := dlock.Check(ctx, raw)
					cancel()
					all(err, func(e error) { show(t, "Check", fmt.Sprintf("%v %+v %#v %q", e, e, e, e)) })
					show(t, "a finding", fmt.Sprintf("%+v", found))
				}
				show(t, "the log", log.String())
			})
		}
	}
}

// all calls f with err and all errors that it wraps.
func all(err error, f func(error)) {
	if err == nil {
		return
	}
	f(err)
	switch u := err.(type) {
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			all(e, f)
		}
	case interface{ Unwrap() error }:
		all(u.Unwrap(), f)
	}
}

// TestAPasswordThatIsAWordChangesNoError: hiding a password that is a common word would reveal it,
// and break the chain of errors.
func TestAPasswordThatIsAWordChangesNoError(t *testing.T) {
	schemes := driver.Schemes()
	for _, password := range []string{"con", "1", "refused", "dial"} {
		for scheme, raw := range urls(password, "127.0.0.1:1") {
			if i := slices.Index(schemes, scheme); i%2 == len(password)%2 {
				continue // half of the schemes with each password is enough
			}
			t.Run(scheme+" "+password, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := dlock.Open(ctx, raw)
				if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "xxxxx") {
					t.Errorf("%v", err)
				}
				if refused := strings.Contains(err.Error(), "connect: connection refused"); !refused && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}
