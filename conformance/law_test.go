package conformance

import (
	"regexp"
	"strings"
	"testing"
)

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

// Whoever sees a failure sees what was promised, and where to read on.
func TestFailureStatesTheLaw(t *testing.T) {
	l := Laws()[0]
	said := try(t, l, everybodyIn).String()
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
