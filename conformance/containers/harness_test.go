package containers

import (
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
)

// caller is a client of the echo server, as far as the harness sees it.
type caller struct {
	driver.Backend
	*talk
}

func TestHarness(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { unreport("echo") })
	e := newEcho(t)
	h := Harness("echo", func(_ conformance.T, p *Proxy) driver.Backend { return &caller{talk: dial(t, p, e)} })
	a, b := h.Open(t).(*caller), h.Open(t).(*caller)
	b.asks("one")
	heal := h.Cut(t, a)
	a.say("two")
	b.asks("three") // only the one is off the line
	a.hearsNothing()
	if e.has("two") > 0 {
		t.Fatal("the server heard a client that is off the line")
	}
	heal()
	a.hears("re two")

	heal = h.Deafen(t, a)
	a.say("four")
	e.awaits(t, "four", 1)
	a.hearsNothing()
	heal()
	a.hears("re four")

	replay := h.Record(t, a)
	a.asks("five")
	b.asks("six")
	replay()
	if e.has("five") != 2 || e.has("six") != 1 {
		t.Fatalf("the server saw %v", e.seen)
	}
	if n := h.Calls(a); n != 3 {
		t.Errorf("%d round trips, want 3", n)
	}
	if n := h.Connections(a); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	if h.Restart != nil {
		t.Error("it would restart no server")
	}
	if h := Harness("user's", nil, &Server{}); h.Restart != nil {
		t.Error("it would restart the user's server")
	}
}

func TestHarnessRestarts(t *testing.T) {
	t.Parallel()
	s, err := start(diaries(t), asProcess)
	if err != nil {
		t.Fatal(err)
	}
	defer s.place.remove()
	if _, err := tell(bounded(t, patience), s.Addr, "one"); err != nil {
		t.Fatal(err)
	}
	pid := s.place.(*process).cmd.Process.Pid
	Harness("diary", nil, s).Restart(t)
	if got, err := tell(bounded(t, patience), s.Addr, "two"); err != nil || !strings.Contains(got, "one") {
		t.Errorf("it answers %q, %v", got, err)
	}
	if pid == s.place.(*process).cmd.Process.Pid {
		t.Error("it is the same process")
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	const name = "a thing in TestReport"
	h := Reported(name, conformance.Harness{Open: func(conformance.T) driver.Backend { return nil }})
	t.Run("passes", func(t *testing.T) { h.Open(t); h.Open(t) })
	t.Run("is skipped", func(t *testing.T) { h.Open(skipped{t}) })
	t.Run("fails", func(t *testing.T) { h.Open(failed{t}) })
	report.mu.Lock()
	v := *report.laws[name]
	report.mu.Unlock()
	if v != (verdicts{passed: 1, skipped: 1, failed: 1}) {
		t.Errorf("counted %+v", v)
	}
	unreport(name)
}

type skipped struct{ *testing.T }

func (skipped) Skipped() bool { return true }

type failed struct{ *testing.T }

func (failed) Failed() bool { return true }

// unreport takes a line out of the report that is true of the tests of this package only.
func unreport(line string) {
	report.mu.Lock()
	defer report.mu.Unlock()
	report.order = slices.DeleteFunc(report.order, func(s string) bool { return s == line })
}
