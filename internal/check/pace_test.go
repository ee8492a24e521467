package main

import (
	"os"
	"strings"
	"testing"
)

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
