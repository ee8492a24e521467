//go:build linux || darwin

package file_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
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
		for text := range bytes.Lines(data) {
			var l struct {
				Name string
				Gone int64
			}
			if err := json.Unmarshal(text, &l); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			if l.Name == name && l.Gone == 0 {
				n++
			}
		}
	}
	return n
}
