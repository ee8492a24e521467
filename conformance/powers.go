package conformance

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// powers are the fields of [Harness] that let laws detect more.
var powers = []string{
	"Partition", "HoldReplies", "DelayReplies", "Record", "Calls", "Connections", "Restart", "Stored", "StepClock", "OpenPrefixed",
}

// gives reports whether the harness has the power.
func (h Harness) gives(power string) bool { return !reflect.ValueOf(h).FieldByName(power).IsNil() }

// checkWithout returns an error if the harness's Without has a mistake.
func (h Harness) checkWithout() error {
	for _, p := range h.Without {
		switch {
		case !slices.Contains(powers, p):
			return fmt.Errorf("Harness.Without has %q, which is not a power; the powers are %s", p, strings.Join(powers, ", "))
		case h.gives(p):
			return fmt.Errorf("Harness.Without has %q, but the harness has that power", p)
		}
	}
	return nil
}

// reportSkipped reports which laws were skipped, and what each of them needs. It fails the test if
// a law was skipped because of a power that is missing and not in Without, since the output of a
// test that passes does not show skipped laws.
func (h Harness) reportSkipped(t T, verdicts []Verdict) {
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
			t.Logf("skipped because the harness does not have the power %s: %s", p, laws)
			continue
		}
		t.Errorf("skipped: %s. They need the power Harness.%s. Give the harness that power or, if this service cannot have it, "+
			"declare that: Without: []string{%q}", laws, p, p)
	}
	if len(denied) > 0 {
		t.Logf("skipped because the backend does not have the capability: %s", strings.Join(slices.Sorted(slices.Values(denied)), ", "))
	}
}
