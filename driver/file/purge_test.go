//go:build linux || darwin

package file

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGarbageIsPurged(t *testing.T) {
	dir := t.TempDir()
	a := openTest(t, dir)
	r := request("kept", long)
	acquire(t, a, r)
	dead := openTest(t, dir)
	acquire(t, dead, request("left", long))
	background(t, dead, request("kept", long))
	// States of killed writers: of a slot in use and of a vacant one, complete and not, never put
	// in place and replaced.
	garbage := []string{stateName(slot("kept"), 2), stateName(slot("unused"), 4), stateName(slot("unused"), 6)}
	for _, g := range garbage {
		if err := os.WriteFile(filepath.Join(a.table.path, "states", g), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	foreign := filepath.Join(a.table.path, "states", "README")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	die(t, dead)
	b := openTest(t, dir)
	kept := stateName(slot("kept"), 0)[:5]
	if got := states(t, b); len(got) != 2 || got[0] != "README" || !strings.HasPrefix(got[1], kept) {
		t.Errorf("states after the purge: %v", got)
	}
	if err := renew(a, r); err != nil {
		t.Errorf("a hold of the living after the purge: %v", err)
	}
	if inspect(t, b, "kept").Len() != 1 {
		t.Error("a waiter of the dead is left")
	}
	files, err := os.ReadDir(filepath.Join(b.table.path, "bells"))
	if err != nil || len(files) != 2 { // those of a and b
		t.Errorf("bells: %v, %v", files, err)
	}
}

// A writer that is stopped before its swap, while another client purges, finds that its swap
// failed. Then it starts again.
func TestPurgeMeetsAWriter(t *testing.T) {
	r := newRig(t)
	dead := openTest(t, filepath.Dir(r.a.table.path))
	die(t, dead)
	q := request("a", long)
	resume := r.as.stop("written", 1, func() error { _, err := r.a.Acquire(t.Context(), q); return err })
	openTest(t, filepath.Dir(r.a.table.path))
	if n := states(t, r.b); len(n) != 0 {
		t.Fatalf("nothing was purged: %v", n)
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	if n := inspect(t, r.b, "a").Len(); n != 1 {
		t.Errorf("%d requests", n)
	}
}
