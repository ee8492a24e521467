package memory_test

import (
	"testing"
	"testing/synctest"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

func harness() conformance.Harness {
	space := new(memory.Space)
	open := func(t conformance.T, prefix string) driver.Backend {
		b, err := memory.New(memory.Options{Space: space, Prefix: prefix})
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return b
	}
	return conformance.Harness{
		Open:         func(t conformance.T) driver.Backend { return open(t, "") },
		OpenPrefixed: open,
		// between a client and its space there is no network, and a space is never restarted
		Without: []string{"HoldReplies", "DelayReplies", "Restart", "StepClock"},
		Stored: func(_ conformance.T, b driver.Backend, name string) int {
			return b.(*memory.Backend).Stored(name)
		},
	}
}

func TestConformance(t *testing.T) { conformance.Run(t, harness()) }

// TestConformanceInVirtualTime runs the same laws under a fake clock, which does not depend on the
// speed of the machine.
func TestConformanceInVirtualTime(t *testing.T) {
	for _, l := range conformance.Laws() {
		t.Run(l.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { l.Run(t, harness()) })
		})
	}
}
