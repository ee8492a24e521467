package conformance

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// powers are the fields of [Harness] that let laws see more.
var powers = []string{
	"Partition", "HoldReplies", "DelayReplies", "Record", "Calls", "Connections", "Restart", "Stored", "StepClock", "OpenPrefixed",
}

// gives reports whether the harness has the power.
func (h Harness) gives(power string) bool { return !reflect.ValueOf(h).FieldByName(power).IsNil() }

// checkWithout says what is wrong with the harness' Without.
func (h Harness) checkWithout() error {
	for _, p := range h.Without {
		switch {
		case !slices.Contains(powers, p):
			return fmt.Errorf("Harness.Without has %q, which is no power; the powers are %s", p, strings.Join(powers, ", "))
		case h.gives(p):
			return fmt.Errorf("Harness.Without has %q, a power that the harness gives", p)
		}
	}
	return nil
}

// tellUntried says which laws were skipped, and what each of them needs. It fails the test if a law
// was skipped for want of a power that the harness does not declare to be without: the output of a
// test that passes does not show what was skipped.
func (h Harness) tellUntried(t T, verdicts []Verdict) {
	t.Helper()
	byPower, denied := map[string][]string{}, []string(nil)
	for _, v := range verdicts {
		switch {
		case v.Skipped == "":
		case v.Power == "":
			denied = append(denied, v.Law.Name)
		default:
			byPower[v.Power] = append(byPower[v.Power], v.Law.Name)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(byPower)) {
		laws := strings.Join(slices.Sorted(slices.Values(byPower[p])), ", ")
		if slices.Contains(h.Without, p) {
			t.Logf("not tried, since the harness is without the power %s: %s", p, laws)
			continue
		}
		t.Errorf("not tried: %s. They need the power Harness.%s. Give the harness that power, or, where there is none on this service, "+
			"say so: Without: []string{%q}", laws, p, p)
	}
	if len(denied) > 0 {
		t.Logf("not tried, since the backend does not claim what they are about: %s", strings.Join(slices.Sorted(slices.Values(denied)), ", "))
	}
}
