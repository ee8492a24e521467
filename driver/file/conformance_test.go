//go:build linux || darwin

package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/file"
)

func TestConformance(t *testing.T) {
	dir := t.TempDir()
	open := func(t conformance.T, prefix string) driver.Backend {
		b, err := file.New(dir, file.Options{Prefix: prefix})
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return b
	}
	conformance.Run(t, conformance.Harness{
		Open:         func(t conformance.T) driver.Backend { return open(t, "") },
		OpenPrefixed: open,
		// there is no service between a client and the memory that all share
		Without: []string{"HoldReplies", "DelayReplies", "Restart", "StepClock"},
		Stored:  func(t conformance.T, _ driver.Backend, name string) int { return stored(t, dir, name) },
	})
}

// stored counts the requests for the name that stand in the files of the directory.
func stored(t conformance.T, dir, name string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "dlock-*", "states", "*"))
	if err != nil {
		t.Fatalf("list states: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if os.IsNotExist(err) {
			return stored(t, dir, name) // it was replaced meanwhile
		} else if err != nil {
			t.Fatalf("read a state: %v", err)
		}
		there := false
		for text := range strings.Lines(string(data)) {
			switch kind, _, _ := strings.Cut(text, " "); kind {
			case "queue":
				there = text == fmt.Sprintf("queue %q\n", name)
			case "exclusive", "shared":
				if there {
					n++
				}
			}
		}
	}
	return n
}
