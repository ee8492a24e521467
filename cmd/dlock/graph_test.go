//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

// wait makes the client wait for the lock until the end of the test, and returns when it does.
func (l locks) wait(c *dlock.Client, m dlock.Mutex) {
	l.t.Helper()
	count := func() int {
		q, err := c.Inspect(l.t.Context(), m.Name())
		if err != nil {
			l.t.Fatal(err)
		}
		return len(q.Waiters)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan bool)
	before := count()
	go func() {
		m.Lock(ctx)
		close(done)
	}()
	l.t.Cleanup(func() { stop(); <-done })
	for count() == before {
	}
}

var ages = regexp.MustCompile(`\d+\.\ds`)

// wantGraph wants what dlock graph writes; ages are 0s.
func (l locks) wantGraph(want string, args ...string) {
	l.t.Helper()
	out := l.want(0, "", append([]string{"graph"}, args...)...)
	if got := ages.ReplaceAllString(out, "0s"); got != want {
		l.t.Errorf("dlock graph %q:\n%s\nwant\n%s", args, got, want)
	}
}

func TestGraph(t *testing.T) {
	l := newLocks(t)
	l.wantGraph(nothingUnder + l.url + "; is it the right URL, with the right prefix?\n")
	ann, bob, carl := l.client(dlock.Label("web1/1/ann/roll-out")), l.client(dlock.Label("web2/2/bob/dump")), l.client(dlock.Label("carl"))
	l.lock(ann.Mutex("shop"))
	l.wantGraph("no waiters; names held: 1\n")
	l.wantGraph("no name in use begins with \"x\"; names in use: 1\n", "x")
	l.lock(bob.Mutex("db"))
	l.wait(bob, bob.Mutex("shop"))
	l.wait(carl, carl.Mutex("shop"))
	l.wait(carl, carl.Mutex("db"))
	l.lock(ann.RWMutex("pages").Read())
	l.lock(bob.RWMutex("pages").Read())
	l.wait(carl, carl.RWMutex("pages").Write())
	l.wantGraph(`web1/1/ann/roll-out  waited for by 2
├─ pages (one of 2)
│  └─ 1. carl  0s
└─ shop
   ├─ 1. web2/2/bob/dump  0s
   │     ├─ db
   │     │  └─ 1. carl  0s
   │     └─ pages (one of 2)
   │        └─ 1. carl  0s
   └─ 2. carl  0s
`)
	l.wantGraph("web2/2/bob/dump  waited for by 1\n└─ db\n   └─ 1. carl  0s\n", "db")

	l.wait(ann, ann.Mutex("db"))
	l.wantGraph(`possible cycle, at most 0s old:
  web1/1/ann/roll-out waits for db, held by web2/2/bob/dump
  web2/2/bob/dump waits for shop, held by web1/1/ann/roll-out

web1/1/ann/roll-out  waited for by 2
├─ pages (one of 2)
│  └─ 1. carl  0s
└─ shop
   ├─ 1. web2/2/bob/dump  0s
   │     ├─ db
   │     │  ├─ 1. carl  0s
   │     │  └─ 2. web1/1/ann/roll-out  0s  (see above)
   │     └─ pages (one of 2)
   │        └─ 1. carl  0s
   └─ 2. carl  0s
`)
	var g watch.Graph
	if err := json.Unmarshal([]byte(l.want(0, "", "graph", "--json")), &g); err != nil || len(g.Cycles) != 1 || len(g.Cycles[0].Steps) != 2 || len(g.Parties) != 3 || g.Parties[0].WaitedFor != 2 {
		t.Errorf("%v, %+v", err, g)
	}
	l.want(statusUsage, "see dlock graph --help", "graph", "a", "b")
}

// TestGraphIsCutWhereManyWait: the first waiters are shown, and those that others wait for.
func TestGraphIsCutWhereManyWait(t *testing.T) {
	l := newLocks(t)
	ann, last := l.client(dlock.Label("ann")), l.client(dlock.Label("last"))
	l.lock(ann.Mutex("x"))
	for range 15 {
		l.wait(ann, ann.Mutex("x"))
	}
	l.lock(last.Mutex("y"))
	l.wait(ann, ann.Mutex("y"))
	other := l.client(dlock.Label(""))
	l.wait(other, other.Mutex("x"))
	l.lock(other.Mutex("z"))
	l.wait(other, other.Mutex("z"))
	l.wait(last, last.Mutex("x"))
	out := l.want(0, "", "graph", "x")
	if strings.Count(out, "ann") != 1+waitersShown || !strings.HasPrefix(out, "ann  waited for by 2\n") || !strings.Contains(out, "and 7 more\n") {
		t.Error(out)
	}
	out = l.want(0, "", "graph", "z")
	if lines := strings.Split(out, "\n"); len(lines[0]) != 8+len("…  waited for by itself") || !strings.HasSuffix(lines[0], "…  waited for by itself") {
		t.Error(out)
	}
	out = l.want(0, "", "graph")
	if !strings.Contains(out, "17. last") || !strings.Contains(out, "and 6 more\n") {
		t.Error(out)
	}
}

// TestNestedRunsAreOneParty: each of two scripts holds the lock that the other one waits for.
func TestNestedRunsAreOneParty(t *testing.T) {
	l := newLocks(t)
	var hs []holder
	for _, next := range []string{"b", "a"} {
		hs = append(hs, l.hold(map[string]string{"a": "b", "b": "a"}[next], "--", "sh", "-c", `echo up; read x; "$DLOCK" run `+next+` -- true`))
	}
	for _, h := range hs {
		io.WriteString(h.in, "go on\n")
	}
	l.await("waits for a, held by", "graph")
	out := l.want(0, "waits for b, held by", "graph")
	for _, h := range hs {
		if !strings.Contains(out, fmt.Sprintf("/%d/", h.Process.Pid)) {
			t.Errorf("no %d in\n%s", h.Process.Pid, out)
		}
		h.Process.Signal(syscall.SIGTERM)
	}
	for _, h := range hs {
		h.rest()
	}
	l.wantFree()
}
