//go:build linux || darwin

package file

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestNamesOfOneSlotDoNotMeet(t *testing.T) {
	b := openTest(t, t.TempDir())
	first := "n0"
	var second string
	for i := 1; second == ""; i++ {
		if n := fmt.Sprintf("n%d", i); slot(n) == slot(first) {
			second = n
		}
	}
	r, s := request(first, long), request(second, long)
	acquire(t, b, r)
	acquire(t, b, s)
	release(t, b, r)
	if inspect(t, b, first).Len() != 0 || inspect(t, b, second).Len() != 1 {
		t.Error("names of one slot block each other")
	}
	if err := renew(b, s); err != nil {
		t.Errorf("Renew after its slot changed: %v", err)
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
	for what, word := range map[string]int{"format": headFormat, "time namespace": headClockID} {
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

// A client that finds another format fails with an error that says so, and changes nothing,
// whatever else is different there. After a reboot it takes over the numbers, which every format
// has in the same place.
func TestAnotherFormatIsRefused(t *testing.T) {
	for _, other := range []uint64{format - 1, format + 1} {
		for _, lives := range []bool{true, false} {
			dir := t.TempDir()
			b := openTest(t, dir)
			acquire(t, b, request("a", long))
			if !lives {
				die(t, b)
				powerOff(t, b)
			}
			path := b.table.path
			const ahead = 1 << 62 // far above the wall clock
			head := binary.NativeEndian.AppendUint64(nil, other)
			head = binary.NativeEndian.AppendUint64(head, ahead)
			table := append(head, make([]byte, 1000)...) // of another size
			if err := errors.Join(os.WriteFile(filepath.Join(path, "new"), table, 0o600),
				os.Rename(filepath.Join(path, "new"), filepath.Join(path, "table")), os.Remove(filepath.Join(path, "cells"))); err != nil {
				t.Fatal(err)
			}
			before := content(t, dir)
			_, err := newBackend(dir, "", testConfig())
			says := []string{fmt.Sprintf("with format %d,", other), fmt.Sprintf("format %d;", format), "stop all programs"}
			if !errors.Is(err, driver.ErrUnsupported) || slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(err.Error(), s) }) {
				t.Errorf("format %d: %v", other, err)
			}
			if after := content(t, dir); after != before {
				t.Errorf("format %d: the directory was changed from\n%s\nto\n%s", other, before, after)
			}
			next, err := newBackend(dir, "", booted(boot2))
			if lives {
				if !refusedBoot(err) {
					t.Errorf("format %d, another boot ID: %v", other, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := acquire(t, next, request("a", long)).Token; got <= ahead {
				t.Errorf("token %d after %d of format %d", got, uint64(ahead), other)
			}
			next.Close()
		}
	}
}

// content returns all files under the directory with their content, except that of pipes.
func content(t testing.TB, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var data []byte
			data, err = os.ReadFile(path)
			fmt.Fprintf(&all, "%s %x\n", path, sha256.Sum256(data))
		} else {
			fmt.Fprintln(&all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// Damage is an error that says what to do: never a crash, and never a lock that is free because its
// state is missing.
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
