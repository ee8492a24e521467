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
	return conformance.Harness{
		Open: func(t conformance.T) driver.Backend {
			b, err := memory.New(memory.Options{Space: space})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Stored: func(_ conformance.T, b driver.Backend, name string) int {
			return b.(*memory.Backend).Stored(name)
		},
	}
}

func TestConformance(t *testing.T) { conformance.Run(t, harness()) }

// TestConformanceInVirtualTime runs the same laws under a fake clock, for which no machine is too
// slow.
func TestConformanceInVirtualTime(t *testing.T) {
	for _, l := range conformance.Laws() {
		t.Run(l.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { l.Run(t, harness()) })
		})
	}
}
