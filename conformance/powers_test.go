package conformance

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// outside is the environment variable of TestOutside's own process with its Without.
const outside = "DLOCK_TEST_OUTSIDE"

// TestOutside is the test of an author outside this repository. It runs in a process of its own.
func TestOutside(t *testing.T) {
	without, is := os.LookupEnv(outside)
	if !is {
		t.Skip("TestRunNamesSkippedLaws runs it")
	}
	toy := newToy(powerless)
	defer close(toy.end)
	h := toy.harness()
	h.Without = strings.Fields(without)
	h.Only = func(l Law) bool {
		return slices.Contains([]string{"pre-cancelled", "tokens-clock", "durable", "tokens-restart"}, l.Name)
	}
	Run(t, h)
}

// A run that passes does not print skipped laws. So a run with a skipped law passes only if the
// harness declares that it does not have the power that the law needs.
func TestRunNamesSkippedLaws(t *testing.T) {
	run := func(without string, args ...string) (string, bool) {
		c := exec.Command(os.Args[0], append(args, "-test.run=^TestOutside$")...)
		c.Env = append(os.Environ(), outside+"="+without)
		out, err := c.CombinedOutput()
		return string(out), err == nil
	}
	const clock, restart = "skipped: tokens-clock. They need the power Harness.StepClock", "skipped: durable, tokens-restart. They need the power Harness.Restart"
	if out, passed := run(""); passed || !strings.Contains(out, clock) || !strings.Contains(out, restart) {
		t.Errorf("without a declaration: passed %v\n%s", passed, out)
	}
	if out, passed := run("StepClock"); passed || strings.Contains(out, clock) || !strings.Contains(out, restart) {
		t.Errorf("with one: passed %v\n%s", passed, out)
	}
	if out, passed := run("StepClock Restart", "-test.v"); !passed || !strings.Contains(out, "does not have the power Restart: durable, tokens-restart") {
		t.Errorf("with both: passed %v\n%s", passed, out)
	}
	if out, passed := run("StepClock Restart Inspect"); passed || !strings.Contains(out, `"Inspect", which is not a power; the powers are Partition,`) {
		t.Errorf("with a word that is not a power: passed %v\n%s", passed, out)
	}
}

func TestWithoutAPowerThatTheHarnessHas(t *testing.T) {
	h := newToy(none).harness()
	if h.Without = []string{"Restart"}; h.checkWithout() == nil {
		t.Error("a power that the harness has and that Without names is not refused")
	}
}

// Every power is the name of a field, and every power that a law needs is in the list.
func TestPowersAreFields(t *testing.T) {
	h := Harness{Open: func(T) driver.Backend { return nil }}
	for _, p := range powers {
		if h.gives(p) {
			t.Errorf("a harness without powers has %s", p)
		}
	}
	toy := newToy(none)
	all := toy.harness()
	for _, p := range powers {
		if !all.gives(p) {
			t.Errorf("the toy has all powers but %s", p)
		}
	}
	for _, l := range Laws() {
		for _, n := range l.needs {
			if n.power != "" && !slices.Contains(powers, n.power) {
				t.Errorf("law %q needs %q, which is not a power", l.Name, n.power)
			}
		}
	}
}

func TestVerdictNamesThePower(t *testing.T) {
	l := lawOf(t, "tokens-clock")
	var v Verdict
	h := newToy(powerless).harness()
	h.Done = func(_ T, got Verdict) { v = got }
	r := &recorder{name: l.Name, ctx: t.Context(), cancel: func() {}}
	r.record(l, h)
	if v.Power != "StepClock" || !strings.Contains(v.Skipped, "Harness.StepClock") || time.Since(v.Began) > time.Minute {
		t.Errorf("verdict %+v", v)
	}
}
