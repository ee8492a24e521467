package service

import (
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/internal/echo"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

// caller is a client of the echo server that the harness takes for a backend.
type caller struct {
	driver.Backend
	*echo.Talk
}

func TestHarness(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { Unreport("echo") })
	e := echo.New(t)
	h := Harness("echo", func(_ conformance.T, p *netfault.Proxy) driver.Backend { return &caller{Talk: echo.Dial(t, p, e)} })
	a, b := h.Open(t).(*caller), h.Open(t).(*caller)
	b.Asks("one")
	heal := h.Partition(t, a)
	a.Say("two")
	b.Asks("three") // only the one client is cut off
	a.HearsNothing()
	if e.Has("two") > 0 {
		t.Fatal("a message of a client that is cut off reached the server")
	}
	heal()
	a.Hears("re two")

	heal = h.HoldReplies(t, a)
	a.Say("four")
	e.Awaits(t, "four", 1)
	a.HearsNothing()
	heal()
	a.Hears("re four")

	replay := h.Record(t, a)
	a.Asks("five")
	b.Asks("six")
	replay()
	if e.Has("five") != 2 || e.Has("six") != 1 {
		t.Fatalf("the server saw %v", e.Seen)
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
	if _, err := tell(await.Bounded(t, await.Patience), s.Addr, "one"); err != nil {
		t.Fatal(err)
	}
	pid := s.place.(*process).cmd.Process.Pid
	Harness("diary", nil, s).Restart(t)
	if got, err := tell(await.Bounded(t, await.Patience), s.Addr, "two"); err != nil || !strings.Contains(got, "one") {
		t.Errorf("it answers %q, %v", got, err)
	}
	if pid == s.place.(*process).cmd.Process.Pid {
		t.Error("it is the same process")
	}
}

func TestReport(t *testing.T) {
	const name = "a thing in TestReport"
	h := Reported(name, conformance.Harness{}, &Server{Version: "thing 1"})
	for _, v := range []conformance.Verdict{{}, {Skipped: "needs more"}, {Skipped: "needs more"}, {Failed: true}} {
		h.Done(t, v)
	}
	report.mu.Lock()
	i := slices.IndexFunc(report.lines, func(l *Line) bool { return l.SetUp == name })
	l := *report.lines[i]
	report.mu.Unlock()
	if l.Passed != 1 || l.Skipped["needs more"] != 2 || l.Failed != 1 || l.Left != len(conformance.Laws())-4 || l.Versions != "thing 1" {
		t.Errorf("counted %+v", l)
	}
	if want := "1 laws passed, 2 skipped, 1 failed"; !strings.Contains(l.String(), want) {
		t.Errorf("the line is %q", l.String())
	}
	Unreport(name)
}

// The list has only names of laws, and not all of them: a cluster runs the others.
func TestSameInAllSetUps(t *testing.T) {
	laws := conformance.Laws()
	for _, name := range alike {
		if !slices.ContainsFunc(laws, func(l conformance.Law) bool { return l.Name == name }) {
			t.Errorf("there is no law %q", name)
		}
	}
	t.Setenv("DLOCK_TEST_LONG", "")
	only := Beside(conformance.Harness{}).Only
	for _, l := range laws {
		if first := []string{"one-holder", "storm", "durable", "tokens-restart", "late-copy"}; slices.Contains(first, l.Name) && !only(l) {
			t.Errorf("a cluster would not run %q, which it breaks first", l.Name)
		}
	}
}
