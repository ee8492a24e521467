//go:build linux

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestRebootFreesEverythingAndTokensGoOn(t *testing.T) {
	dir := t.TempDir()
	for _, keep := range []string{"mine", "dlock-notes", "dlock-" + boot2 + "-x"} { // not ours to remove
		if err := os.Mkdir(filepath.Join(dir, keep), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a := openTest(t, dir)
	const ahead = 1 << 62 // the wall clock stood far ahead once
	if err := raise(a.table.mem.word(headClock), ahead); err != nil {
		t.Fatal(err)
	}
	r := request("a", long)
	g := acquire(t, a, r)
	c := testConfig()
	c.boot = boot2
	b := openTestConfig(t, dir, c)
	w := request("a", long)
	w.Wait = false
	if h := acquire(t, b, w); h.Token <= g.Token {
		t.Errorf("token %d after %d", h.Token, g.Token)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Errorf("in the directory: %v, %v", files, err)
	}
	if err := renew(a, r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew in a directory that was removed: %v", err)
	}
	if _, err := a.Acquire(t.Context(), request("b", long)); err == nil {
		t.Error("Acquire in a directory that was removed")
	}
}

func TestManyOpenAtOnceAndShareOneDirectory(t *testing.T) {
	dir := t.TempDir()
	bs := make([]*backend, 8)
	var all sync.WaitGroup
	for i := range bs {
		all.Go(func() {
			b, err := openConfig(dir, "", testConfig())
			if err != nil {
				t.Error(err)
				return
			}
			bs[i] = b
			t.Cleanup(func() { b.Close() })
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	acquire(t, bs[0], request("a", long))
	for _, b := range bs {
		if inspect(t, b, "a").Len() != 1 {
			t.Error("they do not share one table")
		}
		if b.Capabilities() != bs[0].Capabilities() {
			t.Error("they do not agree on their capabilities")
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("in the directory: %v, %v", files, err)
	}
}

func TestFileSystemsThatCannotAreRefused(t *testing.T) {
	names := map[uint32]string{0x6969: "NFS", 0x65735546: "FUSE", 0x01021997: "9p", 0x4d44: "FAT", 0x12345: "0x12345"}
	for magic, want := range names {
		c := testConfig()
		c.magic = func(string) (uint32, error) { return magic, nil }
		b, err := openConfig(t.TempDir(), "", c)
		if err == nil {
			b.Close()
		}
		for _, part := range []string{want, "tmpfs"} {
			if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), part) {
				t.Errorf("%#x: %v", magic, err)
			}
		}
	}
}

func TestUnusableDirectories(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(file, ""); err == nil {
		t.Error("a file was taken for a directory")
	}
	b := openTest(t, filepath.Join(dir, "locks"))
	for what, word := range map[string]int{"format": headFormat, "time namespace": headTime} {
		p := b.table.mem.word(word)
		v, err := load(p)
		if err != nil {
			t.Fatal(err)
		}
		swap(p, v, v+1)
		_, err = openConfig(filepath.Join(dir, "locks"), "", testConfig())
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), what) {
			t.Errorf("another %s: %v", what, err)
		}
		swap(p, v+1, v)
	}
}

// Damage is an error that says what to do: never a crash, and never a lock that is free because its state is gone.
func TestDamageIsAnError(t *testing.T) {
	damage := map[string]func(t *testing.T, b *backend) error{
		"table truncated": func(t *testing.T, b *backend) error {
			return os.Truncate(filepath.Join(b.table.path, "table"), 0)
		},
		"state removed": func(t *testing.T, b *backend) error {
			return os.Remove(filepath.Join(b.table.path, "states", states(t, b)[0]))
		},
		"state cut off": func(t *testing.T, b *backend) error {
			return os.Truncate(filepath.Join(b.table.path, "states", states(t, b)[0]), 20)
		},
		"state overwritten": func(t *testing.T, b *backend) error {
			return os.WriteFile(filepath.Join(b.table.path, "states", states(t, b)[0]), []byte("{\"name\":\"a\"}\n"), 0o600)
		},
		"client's file truncated": func(t *testing.T, b *backend) error {
			for id := range b.peers.known {
				return os.Truncate(filepath.Join(b.table.path, "clients", id.String()), 0)
			}
			return errors.New("no peer")
		},
	}
	for name, f := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := openTest(t, dir), openTest(t, dir)
			r := request("a", long)
			acquire(t, a, r)
			inspect(t, b, "a")
			b.keep(slot("a"), &state{}) // forget what was read
			if err := f(t, b); err != nil {
				t.Fatal(err)
			}
			w := request("a", long)
			w.Wait = false
			for _, err := range []error{
				func() error { _, err := b.Acquire(t.Context(), w); return err }(),
				b.Release(t.Context(), r),
				func() error { _, err := b.Inspect(t.Context(), "a"); return err }(),
			} {
				if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) {
					t.Errorf("err = %v", err)
				}
			}
		})
	}
}

// A waiter is told when its slot stays unreadable, and it leaves: it does not hang.
func TestWaiterLearnsOfDamage(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	acquire(t, a, request("a", long))
	done := background(t, b, request("a", long))
	if err := os.Truncate(filepath.Join(b.table.path, "table"), 0); err != nil {
		t.Fatal(err)
	}
	if err := answer(t, done); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

func TestGarbageIsSwept(t *testing.T) {
	dir := t.TempDir()
	a := openTest(t, dir)
	r := request("kept", long)
	acquire(t, a, r)
	dead := openTest(t, dir)
	acquire(t, dead, request("left", long))
	background(t, dead, request("kept", long))
	// States of killed writers: of a slot in use and of a vacant one, complete and not, never put in place and
	// replaced.
	garbage := []string{stateName(slot("kept"), 2), stateName(slot("unused"), 4), stateName(slot("unused"), 6)}
	for _, g := range garbage {
		if err := os.WriteFile(filepath.Join(a.table.path, "states", g), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stranger := filepath.Join(a.table.path, "states", "README")
	if err := os.WriteFile(stranger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	die(t, dead)
	b := openTest(t, dir)
	kept := stateName(slot("kept"), 0)[:5]
	if got := states(t, b); len(got) != 2 || got[0] != "README" || !strings.HasPrefix(got[1], kept) {
		t.Errorf("states after the sweep: %v", got)
	}
	if err := renew(a, r); err != nil {
		t.Errorf("a hold of the living after the sweep: %v", err)
	}
	if inspect(t, b, "kept").Len() != 1 {
		t.Error("a waiter of the dead is left")
	}
	files, err := os.ReadDir(filepath.Join(b.table.path, "clients"))
	if err != nil || len(files) != 4 { // a and b, with their bells
		t.Errorf("clients: %v, %v", files, err)
	}
}

// A writer that was stopped before its swap while somebody swept finds that it lost, and its state again.
func TestSweepMeetsAWriter(t *testing.T) {
	r := newRig(t)
	dead := openTest(t, filepath.Dir(r.a.table.path))
	die(t, dead)
	q := request("a", long)
	resume := r.as.stop("written", 1, func() error { _, err := r.a.Acquire(t.Context(), q); return err })
	openTest(t, filepath.Dir(r.a.table.path))
	if n := states(t, r.b); len(n) != 0 {
		t.Fatalf("nothing was swept: %v", n)
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	if n := inspect(t, r.b, "a").Len(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// die makes others find the client dead, as if its process had been killed.
func die(t testing.TB, b *backend) {
	t.Helper()
	if _, err := flock(b.session.cells.fd, syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
}
