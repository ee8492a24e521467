//go:build linux

package file_test

import (
	"testing"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/file"
)

func TestConformance(t *testing.T) {
	dir := t.TempDir()
	conformance.Run(t, conformance.Harness{Open: func(t conformance.T) driver.Backend {
		b, err := file.New(dir, "")
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return b
	}})
}
