package main

import (
	"os"
	"strings"
	"testing"
)

// TestNothingRunsBesideServicesOnASlowMachine, and what is to run does, on any.
func TestNothingRunsBesideServicesOnASlowMachine(t *testing.T) {
	computes, onServers := []step{{name: "tests"}, {name: "lint"}}, []step{{name: "services"}}
	for atOnce, want := range map[int]string{atOnceQuickly: "tests lint; services", atOnceSlowly: "tests lint services"} {
		var got []string
		for _, sequence := range arrange(atOnce, computes, onServers) {
			var names []string
			for _, s := range sequence {
				names = append(names, s.name)
			}
			got = append(got, strings.Join(names, " "))
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("with %d services at once: %q; want %q", atOnce, text, want)
		}
	}
}

func TestServicesAtOnce(t *testing.T) {
	var out strings.Builder
	c := &check{tests: newTests(&out)}
	if n := c.servicesAtOnce(slowly - 1); n != atOnceQuickly || out.Len() != 0 {
		t.Errorf("%d services at once on a quick machine, and it says %q", n, out.String())
	}
	if n := c.servicesAtOnce(slowly); n != atOnceSlowly || !strings.Contains(out.String(), "5ms") {
		t.Errorf("%d services at once on a slow machine, and it says %q", n, out.String())
	}
	if took := pace(os.Args[0] + "-is-not-there"); took != 0 {
		t.Errorf("a program that is not there takes %s", took)
	}
}
