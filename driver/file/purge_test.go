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
		t.Errorf("a living client's hold after the purge: %v", err)
	}
	if inspect(t, b, "kept").Len() != 1 {
		t.Error("a dead client's waiter is left")
	}
	files, err := os.ReadDir(filepath.Join(b.table.path, pipesFolder))
	if err != nil || len(files) != 2 { // those of a and b
		t.Errorf("pipes: %v, %v", files, err)
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

// A damaged record affects no other queue, also if a client has died: new clients purge what they
// can, and the dead client stays registered until all is purged.
func TestPurgeBesideADamagedRecord(t *testing.T) {
	dir := t.TempDir()
	a, dead := openTest(t, dir), openTest(t, dir)
	acquire(t, a, request("damaged", long))
	background(t, dead, request("damaged", long))
	acquire(t, dead, request("left", long))
	die(t, dead)
	s, err := a.read(slot("damaged"))
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(a.table.states.path, stateName(slot("damaged"), s.word))
	good, err := os.ReadFile(record)
	if err == nil {
		err = os.WriteFile(record, good[:len(good)/2], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	home := func() sessionID {
		_, owner, err := a.table.cells.owner(dead.session.id.home())
		if err != nil {
			t.Fatal(err)
		}
		return owner
	}
	b := openTest(t, dir)
	if got := states(t, b); len(got) != 1 || got[0] != filepath.Base(record) {
		t.Errorf("states after the purge: %v", got)
	}
	acquire(t, b, request("left", long))
	if _, err := b.Inspect(t.Context(), "damaged"); err == nil || !strings.Contains(err.Error(), record) {
		t.Errorf("the damaged record: %v", err)
	}
	if home() != dead.session.id {
		t.Error("the dead client is not registered any more, but its requests may remain")
	}
	if err := os.WriteFile(record, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := inspect(t, openTest(t, dir), "damaged").Len(); n != 1 {
		t.Errorf("%d requests once the record is there again", n)
	}
	if home() != 0 {
		t.Error("the dead client's home is not free")
	}
}
