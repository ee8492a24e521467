package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// wantGraph wants the parties, with the number that wait for each, and the cycles, in short.
func (s scene) wantGraph(parties, cycles string) Graph {
	s.Helper()
	g := s.look(s.watcher()).Graph
	var ps, cs []string
	for _, p := range g.Parties {
		ps = append(ps, fmt.Sprintf("%s:%d%v%v", p.Label, p.WaitedFor, p.Holds, p.Waits))
	}
	for _, c := range g.Cycles {
		text := ""
		for _, st := range c.Steps {
			text += st.Label + ">" + st.Waits + ">"
		}
		cs = append(cs, text)
	}
	if got := strings.Join(ps, " "); got != parties {
		s.Errorf("parties %s\nwant    %s", got, parties)
	}
	if got := strings.Join(cs, " "); got != cycles {
		s.Errorf("cycles %s, want %s", got, cycles)
	}
	return g
}

func TestTheMostWaitedForIsFirst(t *testing.T) {
	play(t, func(s scene) {
		a, b, c, d := s.actor("a"), s.actor("b"), s.actor("c"), s.actor("d")
		a.lock(a.Mutex("free of waiters"))
		d.lock(d.Mutex("x"))
		b.lock(b.Mutex("y"))
		b.wait(b.Mutex("x"))
		c.wait(c.Mutex("y"))
		a.wait(a.Mutex("y"))
		s.wantGraph("d:3[x][] b:2[y][x] a:0[][y] c:0[][y]", "")
	})
}

func TestPossibleCycles(t *testing.T) {
	play(t, func(s scene) {
		a, b, c := s.actor("a"), s.actor("b"), s.actor("c")
		a.lock(a.Mutex("x"))
		b.lock(b.Mutex("y"))
		c.lock(c.Mutex("z"))
		time.Sleep(time.Second)
		c.wait(c.Mutex("x"))
		a.wait(a.Mutex("y"))
		s.wantGraph("b:2[y][] a:1[x][y] c:0[][x]", "")
		time.Sleep(time.Second)
		back := b.wait(b.Mutex("z"))
		time.Sleep(2 * time.Second)
		g := s.wantGraph("a:2[x][y] b:2[y][z] c:2[z][x]", "a>y>b>z>c>x>")
		if got := g.Cycles[0].For; got != 2 {
			s.Errorf("for %v s, want 2", got)
		}
		back()
		b.wait(b.Mutex("x"))
		s.wantGraph("a:2[x][y] b:2[y][x] c:0[][x]", "a>y>b>x>")
	})
}

// TestWhatIsNoCycle: goroutines of a process that take turns, and processes that share a name.
func TestWhatIsNoCycle(t *testing.T) {
	play(t, func(s scene) {
		a, b := s.actor("a"), s.actor("b")
		a.lock(a.Mutex("x"))
		a.wait(a.Mutex("x"))
		a.lock(a.Semaphore("s", 2))
		b.lock(b.Semaphore("s", 2))
		a.wait(a.Semaphore("s", 2))
		b.wait(b.Semaphore("s", 2))
		s.wantGraph("a:1[s x][s x] b:1[s][s]", "")
		// but a wait there may be part of a cycle with another name
		b.wait(b.Mutex("x"))
		s.wantGraph("a:1[s x][s x] b:1[s][s x]", "a>s>b>x>")
	})
}

// TestClientsOfAProcessAreOneParty if their labels name the process.
func TestClientsOfAProcessAreOneParty(t *testing.T) {
	play(t, func(s scene) {
		a, b, other := s.actor("web1/12/shop"), s.actor("web1/12/ann/sh"), s.actor("web1/13/shop")
		a.lock(a.Mutex("x"))
		other.lock(other.Mutex("y"))
		b.wait(b.Mutex("y"))
		other.wait(other.Mutex("x"))
		s.wantGraph("web1/12/shop:1[x][y] web1/13/shop:1[y][x]", "web1/12/shop>y>web1/13/shop>x>")
	})
	for label, want := range map[string]string{"web1/12/shop": "web1/12", "web1/12/a/b": "web1/12", "web1/12": "client", "": "client", "cron": "client", "a/b/c": "client", "/1/x": "client", "a/-1/x": "client"} {
		if got := PartyOf(Entry{Label: label, Client: "client"}); got != want {
			t.Errorf("%q: %s, want %s", label, got, want)
		}
	}
}
