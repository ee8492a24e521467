package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// atURL runs the command with the URL in its environment, and returns what it wrote.
func atURL(t *testing.T, url string, status int, args ...string) (out, errOut string) {
	t.Helper()
	cmd, stdout, stderr, dir := command(t, args...)
	cmd.Env = append(cmd.Env, "DLOCK_URL="+url)
	cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("dlock %q: exit status %d, want %d\n%s%s", args, got, status, stdout, stderr)
	}
	if all := stdout.String() + stderr.String(); strings.Contains(all, "canary") {
		t.Errorf("dlock %q shows the password: %s", args, all)
	}
	wantEmpty(t, dir)
	return stdout.String(), stderr.String()
}

func wantText(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("no %q in\n%s", w, got)
		}
	}
}

// wantNothing checks that no name is in use.
func wantNothing(t *testing.T, url string) {
	t.Helper()
	out, _ := atURL(t, url, 0, "ls")
	wantText(t, out, "no name is held or waited for")
}

func TestCheckOnAFolder(t *testing.T) {
	url := "file://" + t.TempDir()
	out, errOut := atURL(t, url, 0, "check")
	wantText(t, out, "fine    reachable: file://", "fine    directory: ", "fine    laws: 13 of 13 core laws hold")
	if errOut != "" {
		t.Error(errOut)
	}
	for line := range strings.Lines(out) {
		if n := len([]rune(strings.TrimSpace(line))); n > columns && strings.Contains(strings.TrimSpace(line)[8:], " ") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	wantNothing(t, url)

	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	out, _ = atURL(t, "file://"+open, 1, "check", "--json", "--no-laws")
	var found []foundJSON
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	refused := false
	for _, f := range found {
		if f.About == "reachable" {
			refused = f.State == "wrong" && strings.Contains(f.Found, "mode 0777") && strings.Contains(f.Found, "writable by all users")
		}
	}
	if !refused || strings.Contains(out, "laws") {
		t.Error(out)
	}
}

// foundJSON is a finding as programs read it from --json.
type foundJSON struct{ About, State, Found, Advice string }

func TestCheckOfWhatIsNotThere(t *testing.T) {
	out, _ := atURL(t, "redis://u:canary@127.0.0.1:1/0", 1, "check")
	wantText(t, out, "wrong   reachable: ", "127.0.0.1:1", "> is the address right")
	if strings.Contains(out, "laws") {
		t.Errorf("laws were tried on what cannot be reached:\n%s", out)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ = atURL(t, "file://"+file, 1, "check")
	wantText(t, out, "wrong   reachable: ", "not a directory")
	for url, want := range map[string]string{
		"nosuch://u:canary@h": "unknown scheme", "memory:x": "nothing to check", "redis://u:canary@h/x": "the number of the database", "redis://u:canary@h/0?nosuch=1": "unknown parameter",
	} {
		_, errOut := atURL(t, url, 2, "check")
		wantText(t, errOut, want)
	}
	_, errOut := atURL(t, "file:///x", 2, "check", "--for", "0s")
	wantText(t, errOut, "more than 0s")
	_, errOut = atURL(t, "", 2, "check", "--url", "file:///x", "file:///y")
	wantText(t, errOut, "given twice")
}

// TestCheckIsBounded: a server that accepts connections and never answers does not block it.
func TestCheckIsBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, scheme := range []string{"redis", "mysql", "postgres", "etcd", "zk"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			out, _ := atURL(t, scheme+"://"+l.Addr().String()+"/0", 1, "check")
			wantText(t, out, "wrong   reachable: ")
		})
	}
}

// TestLawsEndInTime: whenever the time ends, no law is called wrong that was not tried to its end,
// and the exit status says that laws are left.
func TestLawsEndInTime(t *testing.T) {
	url := "file://" + t.TempDir()
	for _, within := range []string{"1ms", "30ms", "100ms", "300ms", "700ms", "1500ms"} {
		t.Run(within, func(t *testing.T) {
			t.Parallel()
			out, _ := atURL(t, url, statusUntried, "check", "--for", within)
			unwrapped := strings.Join(strings.Fields(out), " ")
			wantText(t, unwrapped, "untried laws: ", "of 13 core laws hold; not tried, because the time of --for (", ") ended: ", "close-frees > give them more time")
			if strings.Contains(out, "wrong") {
				t.Error(out)
			}
		})
	}
	out, _ := atURL(t, url, statusUntried, "check", "--for", "1ms", "--json")
	var found []foundJSON
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	if last := found[len(found)-1]; last.About != "laws" || last.State != "untried" || !strings.HasPrefix(last.Found, "0 of 13") {
		t.Error(out)
	}
}

// TestWrongIsWorseThanUntried: wrong decides the exit status.
func TestWrongIsWorseThanUntried(t *testing.T) {
	for want, states := range map[int][]string{
		0: {"fine", "risky", "unseen"}, statusUntried: {"fine", "untried", "risky"}, statusFailed: {"untried", "wrong", "untried"},
	} {
		var found []findingJSON
		for _, state := range states {
			found = append(found, findingJSON{State: state})
		}
		if err := verdict(found); want == 0 && err != nil || want != 0 && status(err) != want {
			t.Errorf("%v: %v", states, err)
		}
	}
}

func TestMigrateHasNothingToDo(t *testing.T) {
	for _, scheme := range []string{"file:///x", "redis://u:canary@h/0", "etcd://h", "zk://h", "redlock://a,b,c"} {
		out, _ := atURL(t, scheme, 0, "migrate")
		wantText(t, out, "there is nothing to migrate")
	}
	up, _ := atURL(t, "", 0, "migrate", "--print")
	wantText(t, up, "CREATE TABLE IF NOT EXISTS dlock_locks", "-- 000002_dlock_requests.up.sql\nCREATE TABLE IF NOT EXISTS dlock_requests (")
	if n := strings.Count(up, ";\n"); n != 2 {
		t.Errorf("%d statements:\n%s", n, up)
	}
	down, _ := atURL(t, "", 0, "migrate", "--print", "--down")
	if i, j := strings.Index(down, "DROP TABLE IF EXISTS dlock_requests;"), strings.Index(down, "DROP TABLE IF EXISTS dlock_locks;"); i < 0 || j < i {
		t.Error(down)
	}
	up, _ = atURL(t, "postgres://u:canary@h/d", 0, "migrate", "--print")
	wantText(t, up, "prefix bytea", "-- 20261129000003_dlock_ended.up.sql\nCREATE INDEX IF NOT EXISTS dlock_requests_ended")
	for _, c := range []struct{ url, args, want string }{
		{"nosuch://u:canary@h", "migrate", "unknown scheme"},
		{"postgresql://u:canary@h", "migrate", "name the database"},
		{"postgres://u:canary@h/d?nosuch=1", "migrate", "unknown parameter"},
		{"postgres://u:canary@h:x/d", "migrate", "want postgres://"},
		{"postgres://u:canary@h/d", "migrate --down", "--yes removes the tables"},
		{"mysql://u:canary@h/d", "migrate --down", "--yes removes the tables"},
		{"mysql://u:canary@h/d", "migrate --force", "with --down only"},
		{"mysql://u:canary@h", "migrate", "name the database"},
		{"mysql://u:canary@h/d?nosuch=1", "migrate", "unknown parameter"},
		{"mysql://u:canary@h:x/d", "migrate", "want mysql://"},
	} {
		_, errOut := atURL(t, c.url, 2, strings.Fields(c.args)...)
		wantText(t, errOut, c.want)
	}
	for _, scheme := range []string{"mysql", "postgres"} {
		_, errOut := atURL(t, scheme+"://u:canary@127.0.0.1:1/d", 1, "migrate")
		wantText(t, errOut, "127.0.0.1:1")
	}
}

func TestBenchOnAFolder(t *testing.T) {
	url := "file://" + t.TempDir()
	begin := time.Now()
	out, errOut := atURL(t, url, 0, "bench", "--for", "2s")
	wantText(t, out, "GOROUTINES  PAIRS/S", "CLIENTS  WAITERS  HAND-OFFS/S", "8        64 ")
	if errOut != "" || strings.Contains(out, "\x1b") {
		t.Errorf("%s%q", errOut, out)
	}
	if took := time.Since(begin); took < 1500*time.Millisecond {
		t.Errorf("it measured for %s only", took)
	}
	wantNothing(t, url)
	out, _ = atURL(t, url, 0, "bench", "--for", "900ms", "--json")
	var r struct {
		Backend     string
		Uncontended []struct {
			Goroutines     int
			Per_second     float64
			P50_ms, P99_ms float64
		}
		Handoffs []struct {
			Clients, Waiters int
			Per_second       float64
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Backend != "file" || len(r.Uncontended) != 3 || len(r.Handoffs) != 6 || r.Uncontended[0].Per_second <= 0 || r.Uncontended[0].P99_ms < r.Uncontended[0].P50_ms || r.Uncontended[0].P50_ms <= 0 {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct{ url, args, want string }{
		{url, "bench --for 1ms", "100ms to 1h are allowed"},
		{"memory:x", "bench", "within one process"},
		{"nosuch://u:canary@h", "bench", "unknown scheme"},
	} {
		_, errOut := atURL(t, c.url, 2, strings.Fields(c.args)...)
		wantText(t, errOut, c.want)
	}
	_, errOut = atURL(t, "redis://u:canary@127.0.0.1:1/0", 1, "bench")
	wantText(t, errOut, "127.0.0.1:1")
}

func TestWrapped(t *testing.T) {
	for _, c := range []struct {
		text   string
		indent int
		want   string
	}{
		{"", 8, ""}, {"a b", 8, "a b"},
		{strings.Repeat("x", 72), 8, strings.Repeat("x", 72)},
		{strings.Repeat("x", 70) + " yz", 8, strings.Repeat("x", 70) + "\n        yz"},
		{strings.Repeat("x", 69) + " yz", 8, strings.Repeat("x", 69) + " yz"},
		{"a " + strings.Repeat("x", 100) + " b", 2, "a\n  " + strings.Repeat("x", 100) + "\n  b"},
	} {
		if got := wrapped(c.text, c.indent); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}
