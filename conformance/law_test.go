package conformance

import (
	"regexp"
	"strings"
	"sync"
	"testing"
)

// lawOf returns the law of that name.
func lawOf(t *testing.T, name string) Law {
	t.Helper()
	for _, l := range Laws() {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("no law %q", name)
	panic("unreachable")
}

func TestLawsAreNamed(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range Laws() {
		if !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(l.Name) || seen[l.Name] {
			t.Errorf("law %q: want a new name of small letters and hyphens", l.Name)
		}
		if seen[l.Name] = true; len(l.Sentence) < 20 || l.run == nil {
			t.Errorf("law %q has no sentence or no code", l.Name)
		}
	}
}

func TestRunReportsVerdicts(t *testing.T) {
	var mu sync.Mutex
	verdicts := map[string]Verdict{}
	toy := newToy(poor)
	defer close(toy.end)
	h := toy.harness()
	h.Only = func(l Law) bool { return l.Name == "pre-cancelled" || l.Name == "arrival-order" }
	h.Done = func(_ T, v Verdict) {
		mu.Lock()
		defer mu.Unlock()
		verdicts[v.Law.Name] = v
	}
	t.Run("all", func(t *testing.T) { Run(t, h) })
	if len(verdicts) != 2 || verdicts["pre-cancelled"].Skipped != "" || !strings.Contains(verdicts["arrival-order"].Skipped, "needs Capabilities.Queue") {
		t.Errorf("verdicts %+v", verdicts)
	}
	for name, v := range verdicts {
		if v.Failed || v.Began.IsZero() {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// A failure prints the promise, and where the code of the law is.
func TestFailureStatesTheLaw(t *testing.T) {
	l := Laws()[0]
	said := try(t, l, grantsAll).String()
	if !strings.Contains(said, l.Sentence) || !regexp.MustCompile(`conformance/exclusion\.go:\d+: law "one-holder"`).MatchString(said) {
		t.Errorf("a failure does not state its law:\n%s", said)
	}
}

func TestSkipsAreVisible(t *testing.T) {
	for _, l := range Laws() {
		if r := try(t, l, poor); r.skipped && !strings.Contains(r.String(), "needs ") {
			t.Errorf("law %q is skipped without a reason: %s", l.Name, r)
		}
	}
}
