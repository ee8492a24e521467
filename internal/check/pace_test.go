package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain lets the program of the tests do nothing too.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == nothing {
		return
	}
	os.Exit(m.Run())
}

func TestServicesAtOnce(t *testing.T) {
	var out strings.Builder
	n := (&check{tests: newTests(&out)}).servicesAtOnce()
	if slow := strings.Contains(out.String(), "slow machine"); slow && n != atOnceSlowly || !slow && n != atOnceQuickly {
		t.Errorf("%d services at once, and it says %q", n, out.String())
	}
	if took := pace(os.Args[0]); took <= 0 {
		t.Errorf("a program takes %s", took)
	}
	if took := pace(os.Args[0] + "-is-not-there"); took != 0 {
		t.Errorf("a program that is not there takes %s", took)
	}
}
