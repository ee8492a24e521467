//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// serveUI starts dlock ui with arguments, and returns the lines that it wrote until it served, of
// which the last is its address, and what ends it with a signal and returns its status.
func (l locks) serveUI(args ...string) (lines []string, errOut *strings.Builder, end func() int) {
	l.t.Helper()
	cmd, _, errOut := l.command(append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Stdout = nil
	cmd.Env = append(cmd.Env, "SHOP="+l.url)
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { cmd.Process.Kill() })
	for r := bufio.NewReader(out); len(lines) == 0 || !strings.HasPrefix(lines[len(lines)-1], "http://"); {
		line, err := r.ReadString('\n')
		if err != nil {
			cmd.Wait()
			l.t.Fatalf("dlock ui %q: %v %s", args, err, errOut)
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines, errOut, func() int {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}
}

// TestUI: the page is served until a signal comes, and shows what is held.
func TestUI(t *testing.T) {
	l := newLocks(t)
	l.lock(l.client().Mutex("a"))
	for _, args := range [][]string{nil, {"env:SHOP"}, {l.url, "env:SHOP"}} {
		lines, _, end := l.serveUI(args...)
		if len(lines) != 1 {
			t.Errorf("it writes %q", lines)
		}
		res, err := http.Get(lines[0] + "api/locks")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		var all []struct {
			Title string
			Names []struct{ Name string }
		}
		if err := json.Unmarshal(body, &all); err != nil || len(all) != max(len(args), 1) || len(all[0].Names) != 1 || all[0].Names[0].Name != "a" || all[0].Title != l.url {
			t.Errorf("dlock ui %q: %v %s", args, err, body)
		}
		if got := end(); got != 0 {
			t.Errorf("exit status %d", got)
		}
	}
}

// TestUIEndsWithAnOpenPage: an open page does not keep it running.
func TestUIEndsWithAnOpenPage(t *testing.T) {
	l := newLocks(t)
	lines, errOut, end := l.serveUI()
	res, err := http.Get(lines[0] + "api/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); line != "event: hello\n" {
		t.Fatalf("%q %v", line, err)
	}
	began := time.Now()
	if got := end(); got != 0 || time.Since(began) > 20*time.Second {
		t.Errorf("exit status %d after %s: %s", got, time.Since(began), errOut)
	}
}

// TestUIOutlivesItsViewers: a viewer that leaves in the middle of the stream ends nothing.
func TestUIOutlivesItsViewers(t *testing.T) {
	l := newLocks(t)
	lines, errOut, end := l.serveUI()
	addr := strings.TrimSuffix(strings.TrimPrefix(lines[0], "http://"), "/")
	for i := range 60 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatalf("after %d viewers: %v %s", i, err, errOut)
		}
		io.WriteString(c, "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		io.ReadFull(c, make([]byte, 300))
		c.Close()
	}
	res, err := http.Get(lines[0] + "healthz")
	if err != nil {
		t.Fatalf("after its viewers have gone: %v %s", err, errOut)
	}
	res.Body.Close()
	if got := end(); got != 0 {
		t.Errorf("exit status %d", got)
	}
}

func TestUITokenIsAnotherEachTime(t *testing.T) {
	l, seen := newLocks(t), map[string]bool{}
	for range 2 {
		lines, errOut, end := l.serveUI("--allow-break")
		token, ok := strings.CutPrefix(lines[0], "token to end holds: ")
		if !ok || len(token) < 20 || seen[token] {
			t.Errorf("it writes %q", lines)
		}
		seen[token] = true
		end()
		if strings.Contains(errOut.String(), token) {
			t.Errorf("the log has the token: %s", errOut)
		}
	}
}

// TestUIShowsNoPassword, also for a backend that does not answer. The others are shown all the
// same.
func TestUIShowsNoPassword(t *testing.T) {
	l := newLocks(t)
	lines, errOut, end := l.serveUI("-v", "redis://operator:canary@127.0.0.1:1/0?prefix=p/", l.url)
	shown := strings.Join(lines, "\n")
	for _, path := range []string{"", "api/locks"} {
		res, err := http.Get(lines[len(lines)-1] + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		shown += string(body)
	}
	if got := end(); got != 0 {
		t.Errorf("exit status %d", got)
	}
	shown += errOut.String()
	if strings.Contains(shown, "canary") {
		t.Errorf("it shows the password:\n%s", shown)
	}
	if !strings.Contains(shown, "redis://127.0.0.1:1/0 p/") || !strings.Contains(shown, `"title":"`+l.url) {
		t.Errorf("it does not show its backends:\n%s", shown)
	}
}

func TestUIUsage(t *testing.T) {
	l := newLocks(t)
	for want, args := range map[string][]string{
		"want host:port":            {"--listen", "8399"},
		"--listen 0.0.0.0:0":        {"--listen", "0.0.0.0:0"},
		"--listen :0":               {"--listen", ":0"},
		"--listen locks.internal:0": {"--listen", "locks.internal:0"},
		"100ms to 1m are allowed":   {"--interval", "99ms"},
		"--most 0":                  {"--most", "0"},
		"env:NOSUCH":                {"env:NOSUCH"},
		`unknown scheme "nosuch"`:   {"nosuch://u:canary@h"},
		"within one process only":   {"memory:x"},
		"unknown flag: --allow":     {"--allow"},
	} {
		got, out, errOut := l.run(append([]string{"ui"}, args...)...)
		if got != statusUsage || out != "" || !strings.Contains(errOut, want) || strings.Contains(errOut, "canary") {
			t.Errorf("dlock ui %q: exit status %d, %q, want %q on standard error:\n%s", args, got, out, want, errOut)
		}
	}
	taken, _, _ := l.serveUI()
	address := strings.TrimSuffix(strings.TrimPrefix(taken[0], "http://"), "/")
	l.want(statusFailed, "address already in use", "ui", "--listen", address)
}

func TestMayListen(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:8399": true, "127.1.2.3:0": true, "[::1]:8399": true, "localhost:8399": true,
		"0.0.0.0:8399": false, "[::]:8399": false, ":8399": false, "10.0.0.5:8399": false, "example.com:80": false,
	} {
		if err := mayListen(listen, nil); (err == nil) != want {
			t.Errorf("%s: %v", listen, err)
		}
		if err := mayListen(listen, []string{"locks.internal"}); err != nil {
			t.Errorf("%s with --host: %v", listen, err)
		}
	}
}

func TestTitle(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://u:canary@h1:1,h2:2/0?password=canary&prefix=p/&ttl=3s": "redis://h1:1,h2:2/0 p/",
		"file:///var/lib/locks":        "file:///var/lib/locks",
		"etcd://e1,e2,e3?token=canary": "etcd://e1,e2,e3",
	} {
		if got := title(raw); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}
