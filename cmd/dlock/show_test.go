//go:build linux

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

func (l locks) client(opts ...dlock.Option) *dlock.Client {
	l.t.Helper()
	c, err := dlock.Open(l.t.Context(), l.url, append(opts, dlock.Logger(nil))...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

func (l locks) lock(m dlock.Mutex) *dlock.Lease {
	l.t.Helper()
	lease, err := m.Lock(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return lease
}

func TestWhatIsShownFitsIntoATerminal(t *testing.T) {
	l := newLocks(t)
	long := strings.Repeat("long/", 51)
	c := l.client(dlock.Label(strings.Repeat("ü", 100)))
	l.lock(c.Mutex(long))
	l.lock(c.Semaphore("sem", 1000000))
	waits, stop := context.WithCancel(t.Context())
	defer stop()
	other := l.client(dlock.Label(strings.Repeat("x", 255)))
	go other.Mutex(long).Lock(waits)
	l.until(`"waiters": [
      {`)
	for _, args := range [][]string{{"ls"}, {"inspect", long}, {"inspect", "sem"}, {"graph"}, {"top"}, {"break", "--yes", long}} {
		out := l.want(0, "", args...)
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
				t.Errorf("%.20q: %d columns: %s", args, n, line)
			}
		}
	}
}

// shownWidth is how many columns a terminal gives the text, of the characters that the test has.
func shownWidth(text string) (n int) {
	for _, r := range text {
		cjk := unicode.In(r, unicode.Han, unicode.Hangul) || r >= 0x3000 && r <= 0x30FF || r >= 0xFF01 && r <= 0xFF60
		switch {
		case unicode.Is(unicode.Mn, r) || r >= 0x1F3FB && r <= 0x1F3FF: // takes none
		case cjk || r >= 0x1F300 && r <= 0x1FAFF:
			n += 2
		default:
			n++
		}
	}
	return n
}

// TestWideNames: columns are aligned, and lines fit, whatever characters names and labels have.
func TestWideNames(t *testing.T) {
	l := newLocks(t)
	names := []string{"ascii", "数据库/备份", "データベース", "한국어", "🔒🔑", "👍🏽/ok", "ｆｕｌｌ", "cafe\u0301", strings.Repeat("数据库备份", 10), strings.Repeat("a🔒", 30)}
	c := l.client(dlock.Label(strings.Repeat("主机", 40)))
	for _, name := range names {
		l.lock(c.Mutex(name))
	}
	waits, stop := context.WithCancel(t.Context())
	defer stop()
	other := l.client(dlock.Label("second " + strings.Repeat("待つ", 40)))
	for i, name := range names {
		go other.Mutex(name).Lock(waits)
		l.awaitCount(`"waiters": [
      {`, i+1)
	}
	for _, args := range [][]string{{"ls"}, {"top", "--once"}, {"graph"}, {"inspect", names[1]}, {"inspect", names[8]}, {"break", "--yes", names[4]}} {
		out := l.want(0, "", args...)
		var columnsAt []int // of the second and the last column, below the heading
		for line := range strings.Lines(out) {
			line = strings.TrimSuffix(line, "\n")
			if n := shownWidth(line); n > columns {
				t.Errorf("%q: %d columns: %s", args, n, line)
			}
			switch {
			case args[0] == "graph":
			case strings.Contains(line, "MODE ") || strings.Contains(line, "WAIT "):
				columnsAt = nil
				for _, heading := range []string{"MODE ", "WAIT ", "AGE ", "LEFT "} {
					if at := strings.Index(line, heading); at >= 0 {
						columnsAt = append(columnsAt, at)
					}
				}
			case line == "" || strings.HasPrefix(line, "broken"):
				columnsAt = nil
			default:
				for _, at := range columnsAt {
					if before, ok := cutAt(line, at); !ok || !strings.HasSuffix(before, " ") {
						t.Errorf("%q: no column begins at %d:\n%s", args, at, out)
						return
					}
				}
			}
		}
	}
}

// cutAt returns the first n columns; ok is false if a character lies across the cut.
func cutAt(line string, n int) (before string, ok bool) {
	for i := range line {
		if w := shownWidth(line[:i]); w >= n {
			return line[:i], w == n
		}
	}
	return line, true
}

func TestShort(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"数据", 4, "数据"}, {"数据库", 4, "数…"}, {"数据库", 5, "数据…"}, {"a数据", 3, "a…"},
		{"数", 1, "…"}, {"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"}, {"e\u0301e\u0301e\u0301", 2, "e\u0301…"}, {"👍🏽👍🏽", 3, "👍🏽…"},
	} {
		if got := short(c.text, c.n); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestLsAndInspect(t *testing.T) {
	l := newLocks(t)
	l.want(0, nothingUnder+l.url+";", "ls")
	l.want(0, nothingUnder+l.url+";", "inspect", "x/1")
	l.want(0, "[]\n", "ls", "--json")
	c := l.client(dlock.Label("first"))
	lease := l.lock(c.Mutex("x/1"))
	l.lock(c.RWMutex("y").Read())
	waits, stop := context.WithCancel(t.Context())
	defer stop()
	go l.client(dlock.Label("second")).Mutex("x/1").Lock(waits)
	l.until("second")

	out := l.want(0, "", "ls", "x/")
	lines := strings.Split(out, "\n")
	if len(lines) != 3 || strings.Join(strings.Fields(lines[0]), " ") != "NAME MODE HOLD WAIT AGE LEFT HELD BY" || !strings.HasPrefix(strings.Join(strings.Fields(lines[1]), " "), "x/1 exclusive 1 1 ") || !strings.HasSuffix(lines[1], " first") {
		t.Errorf("ls:\n%s", out)
	}
	l.want(0, `no name in use begins with "z"; names in use: 2`, "ls", "z")
	out = l.want(0, "--url and DLOCK_URL name the backend", "ls", "redis://u:canary@h")
	if strings.Contains(out, "canary") {
		t.Errorf("the password is shown: %s", out)
	}
	out = l.want(0, "x/1: holders 1, waiters 1\n", "inspect", "x/1")
	holds, wait := strings.Index(out, "\nholds "), strings.Index(out, "\nwaits ")
	if holds < 0 || wait < holds {
		t.Errorf("inspect:\n%s", out)
	}
	out = l.want(0, "z: free, no waiters", "inspect", "z")
	if strings.Contains(out, nothingUnder) {
		t.Errorf("there are names:\n%s", out)
	}
	var q watch.Queue
	if err := json.Unmarshal([]byte(l.want(0, "", "inspect", "--json", "x/1")), &q); err != nil {
		t.Fatal(err)
	}
	if len(q.Holders) != 1 || len(q.Waiters) != 1 || q.Name != "x/1" || q.Holders[0].Label != "first" || q.Waiters[0].Label != "second" ||
		q.Holders[0].Mode != "exclusive" || q.Holders[0].Token == "" || q.Holders[0].Left <= 0 || q.Waiters[0].Token != "" {
		t.Errorf("%+v", q)
	}
	if err := lease.Err(); err != nil {
		t.Error("looking ended it:", err)
	}
	for _, args := range [][]string{{"inspect"}, {"inspect", ""}, {"inspect", "a", "b"}, {"ls", "a", "b"}, {"ls", "--nosuch"}} {
		l.want(statusUsage, "error: ", args...)
	}
}

func TestBreak(t *testing.T) {
	l := newLocks(t)
	l.want(statusFailed, `lock "a" has no holder`, "break", "--yes", "a")
	c := l.client()
	lease := l.lock(c.Mutex("a", dlock.TTL(time.Second)))
	l.want(statusUsage, "--yes", "break", "a") // there is no terminal
	l.want(statusUsage, "want a number", "break", "--yes", "--token", "x", "a")
	l.want(statusFailed, "no hold of", "break", "--yes", "--token", "1", "a")
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	l.want(0, "broken", "break", "--yes", "a")
	<-lease.Lost()

	one, two := l.lock(c.Semaphore("s", 2)), l.lock(c.Semaphore("s", 2))
	l.want(statusUsage, "choose one with --token", "break", "--yes", "s")
	var q watch.Queue
	if err := json.Unmarshal([]byte(l.want(0, "", "inspect", "--json", "s")), &q); err != nil {
		t.Fatal(err)
	}
	l.want(0, "ended", "break", "--yes", "--force", "--token", q.Holders[1].Token, "s")
	l.want(0, "in\n", "run", "--try", "--limit", "2", "s", "--", "echo", "in")
	if err := two.Renew(t.Context()); err == nil {
		t.Error("it was not ended")
	}
	if err := one.Renew(t.Context()); err != nil {
		t.Error("another one was ended:", err)
	}
}

func TestConfirm(t *testing.T) {
	for answer, yes := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "": false, "yep\n": false} {
		var out strings.Builder
		if err := confirm(t.Context(), strings.NewReader(answer), &out, 7, true); (err == nil) != yes || !strings.Contains(out.String(), "token 7) now") {
			t.Errorf("%q: %v, %s", answer, err, out.String())
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := confirm(over, blocked{}, new(strings.Builder), 7, false); err == nil {
		t.Error("it was not interrupted")
	}
}

type blocked struct{}

func (blocked) Read([]byte) (int, error) { select {} }

func TestTextForPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0s", 1500 * time.Millisecond: "1.5s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 25 * time.Hour: "25h00m", 1000 * time.Hour: "41d",
	} {
		if got := span(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	if got := printable("a\x1b[31m\u202eü\xff"); got != "a?[31m?ü?" {
		t.Errorf("%q", got)
	}
}
