//go:build linux

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestRebootFreesEverythingAndTokensGoOn(t *testing.T) {
	dir := t.TempDir()
	// not ours to remove
	for _, keep := range []string{"mine", "dlock-notes", "dlock-" + boot2 + "-x"} {
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
	powerOff(t, a)
	b := openTestConfig(t, dir, booted(boot2))
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

// powerOff makes others find nobody in the client's directory, as if the machine had been switched
// off.
func powerOff(t testing.TB, b *Backend) {
	t.Helper()
	if _, err := flock(b.table.dir, syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
}

func booted(boot string) config {
	c := testConfig()
	c.boot = boot
	return c
}

// refused reports whether the error says why a process with another boot ID may not come in.
func refusedBoot(err error) bool {
	return errors.Is(err, driver.ErrUnsupported) && strings.Contains(err.Error(), "boot ID")
}

// A container that has a boot ID of its own must not take the live state of others for a leftover.
func TestAnotherBootIDIsRefusedWhileSomebodyLives(t *testing.T) {
	dir := t.TempDir()
	holder := startBoot(t, dir, boot1)
	token := holder.do("acquire a 1h")
	open := func() (*Backend, error) { return newBackend(dir, "", booted(boot2)) }
	for _, state := range []string{"runs", "is stopped", "goes on"} {
		switch state {
		case "is stopped":
			holder.signal(syscall.SIGSTOP)
			holder.stopped()
		case "goes on":
			holder.signal(syscall.SIGCONT)
		}
		b, err := open()
		if err == nil {
			b.Close()
		}
		if !refusedBoot(err) {
			t.Fatalf("the holder %s: Open with another boot ID: %v", state, err)
		}
	}
	if s := holder.do("renew"); s != "ok" {
		t.Errorf("Renew by the holder: %q", s)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("who was refused left something: %v, %v", files, err)
	}
	holder.kill() // now it is as after a reboot
	b, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if g := acquire(t, b, request("a", long)); fmt.Sprint(g.Token) <= token {
		t.Errorf("token %d after %s", g.Token, token)
	}
}

// However two with different boot IDs meet when they open, and wherever one of them is stopped,
// they are never both in.
func TestNewcomersWithDifferentBootIDs(t *testing.T) {
	t.Run("at once", func(t *testing.T) {
		for range 10 {
			dir := t.TempDir()
			var all sync.WaitGroup
			var in [2]atomic.Int64
			for i := range 8 {
				all.Go(func() {
					b, err := newBackend(dir, "", booted([]string{boot1, boot2}[i%2]))
					if err == nil {
						in[i%2].Add(1)
						t.Cleanup(func() { b.Close() })
					} else if !refusedBoot(err) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if a, b := in[0].Load(), in[1].Load(); a > 0 && b > 0 || a+b == 0 {
				t.Fatalf("%d and %d are in", a, b)
			}
		}
	})
	t.Run("one is stopped before it looks", func(t *testing.T) {
		dir, first := t.TempDir(), booted(boot1)
		var s steps
		first.at = s.at
		resume := s.stop("announced", 1, func() error { return openAndKeep(t, dir, first) })
		if err := openAndKeep(t, dir, booted(boot2)); !refusedBoot(err) {
			t.Errorf("beside it: %v", err)
		}
		if err := resume(); err != nil {
			t.Errorf("the one that was stopped: %v", err)
		}
	})
	t.Run("one is stopped while it removes what was left", func(t *testing.T) {
		dir, first := t.TempDir(), booted(boot2)
		powerOff(t, openTest(t, dir))
		var s steps
		first.at = s.at
		resume := s.stop("clear", 1, func() error { return openAndKeep(t, dir, first) })
		if err := openAndKeep(t, dir, booted(boot1)); !refusedBoot(err) {
			t.Errorf("with the boot ID of what was left: %v", err)
		}
		if err := openAndKeep(t, dir, booted(boot2)); err != nil {
			t.Errorf("with the same boot ID: %v", err)
		}
		if err := resume(); err != nil {
			t.Errorf("the one that was stopped: %v", err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Errorf("in the directory: %v, %v", files, err)
		}
	})
	t.Run("one is stopped before it looks, and the other was there", func(t *testing.T) {
		dir, second := t.TempDir(), booted(boot2)
		var s steps
		second.at = s.at
		resume := s.stop("announced", 1, func() error { return openAndKeep(t, dir, second) })
		c := booted(boot1) // it showed itself before the second, and bootCheck before it
		others := filepath.Join(dir, "dlock-"+boot1)
		if err := makeTable(dir, others); err != nil {
			t.Fatal(err)
		}
		fd, err := openAt(atFDCWD, others, syscall.O_RDONLY|syscall.O_DIRECTORY)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		if _, err := flock(fd, syscall.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		if err := resume(); !refusedBoot(err) {
			t.Errorf("the one that was stopped: %v", err)
		}
		if err := openAndKeep(t, dir, c); err != nil {
			t.Errorf("where somebody is: %v", err)
		}
	})
}

func openAndKeep(t testing.TB, dir string, c config) error {
	b, err := newBackend(dir, "", c)
	if err == nil {
		t.Cleanup(func() { b.Close() })
	}
	return err
}

func TestManyOpenAtOnceAndShareOneDirectory(t *testing.T) {
	dir := t.TempDir()
	bs := make([]*Backend, 8)
	var all sync.WaitGroup
	for i := range bs {
		all.Go(func() {
			b, err := newBackend(dir, "", testConfig())
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
		b, err := newBackend(t.TempDir(), "", c)
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
	if _, err := New(file, Options{}); err == nil {
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
		_, err = newBackend(filepath.Join(dir, "locks"), "", testConfig())
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), what) {
			t.Errorf("another %s: %v", what, err)
		}
		swap(p, v+1, v)
	}
}

// Damage is an error that says what to do: never a crash, and never a lock that is free because its
// state is gone.
func TestDamageIsAnError(t *testing.T) {
	damage := map[string]func(t *testing.T, b *Backend) error{
		"table truncated": func(t *testing.T, b *Backend) error {
			return os.Truncate(filepath.Join(b.table.path, "table"), 0)
		},
		"state removed": func(t *testing.T, b *Backend) error {
			return os.Remove(filepath.Join(b.table.path, "states", states(t, b)[0]))
		},
		"state cut off": func(t *testing.T, b *Backend) error {
			return os.Truncate(filepath.Join(b.table.path, "states", states(t, b)[0]), 20)
		},
		"state overwritten": func(t *testing.T, b *Backend) error {
			return os.WriteFile(filepath.Join(b.table.path, "states", states(t, b)[0]), []byte("{\"name\":\"a\"}\n"), 0o600)
		},
		"cells truncated": func(t *testing.T, b *Backend) error {
			return os.Truncate(filepath.Join(b.table.path, "cells"), 0)
		},
	}
	for name, f := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := openTest(t, dir), openTest(t, dir)
			r := request("a", long)
			acquire(t, a, r)
			inspect(t, b, "a")
			b.cacheState(slot("a"), &state{}) // forget what was read
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
	// States of killed writers: of a slot in use and of a vacant one, complete and not, never put
	// in place and replaced.
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
	files, err := os.ReadDir(filepath.Join(b.table.path, "bells"))
	if err != nil || len(files) != 2 { // those of a and b
		t.Errorf("bells: %v, %v", files, err)
	}
}

// A writer that was stopped before its swap while somebody swept finds that it lost, and its state
// again.
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
func die(t testing.TB, b *Backend) {
	t.Helper()
	if _, err := lockByte(b.table.cells.fd, b.session.id.home(), syscall.F_UNLCK); err != nil {
		t.Fatal(err)
	}
}
