//go:build linux || darwin

package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/file"
)

// moves are the ways in which the path of a directory can change its target. back undoes them.
var moves = map[string]func(t *testing.T, root, dir string) (back func()){
	"moved": func(t *testing.T, root, dir string) func() {
		must(t, os.Rename(dir, dir+".old"))
		return func() { must(t, os.Rename(dir+".old", dir)) }
	},
	"moved, and made again": func(t *testing.T, root, dir string) func() {
		must(t, os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
		return func() { must(t, os.RemoveAll(dir), os.Rename(dir+".old", dir)) }
	},
	"one above it is moved": func(t *testing.T, root, dir string) func() {
		up := filepath.Dir(dir)
		must(t, os.Rename(up, up+".old"), os.MkdirAll(dir, 0o700))
		return func() { must(t, os.RemoveAll(up), os.Rename(up+".old", up)) }
	},
	"a link on the way leads elsewhere": func(t *testing.T, root, dir string) func() {
		link, other := filepath.Join(root, "link"), filepath.Join(root, "other")
		must(t, os.MkdirAll(filepath.Join(other, "locks"), 0o700), os.Remove(link), os.Symlink(other, link))
		return func() { must(t, os.Remove(link), os.Symlink(filepath.Join(root, "up"), link)) }
	},
	"mounted over": func(t *testing.T, root, dir string) func() {
		if err := mountOver(dir); err != nil {
			t.Skipf("this process cannot mount: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, 0) })
		return func() { must(t, syscall.Unmount(dir, 0)) }
	},
	"the folder of the boot is moved": func(t *testing.T, root, dir string) func() {
		boot := one(t, filepath.Join(dir, "dlock-*"))
		must(t, os.Rename(boot, filepath.Join(dir, "aside")))
		return func() { must(t, os.Rename(filepath.Join(dir, "aside"), boot)) }
	},
	"the cells are replaced": func(t *testing.T, root, dir string) func() {
		cells := one(t, filepath.Join(dir, "dlock-*", "cells"))
		must(t, os.Rename(cells, cells+".old"), os.WriteFile(cells, make([]byte, 1<<19), 0o600))
		return func() { must(t, os.Rename(cells+".old", cells)) }
	},
	"removed": func(t *testing.T, root, dir string) func() {
		must(t, os.RemoveAll(dir))
		return nil
	},
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// What is held in a directory that was moved is lost, by the next renewal at the latest, and the
// error says why. It stays lost when the directory comes back.
func TestMovedDirectory(t *testing.T) {
	for what, move := range moves {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(root, "up", "locks"), 0o700), os.Symlink(filepath.Join(root, "up"), filepath.Join(root, "link")))
			dir := filepath.Join(root, "link", "locks")
			if what != "a link on the way leads elsewhere" {
				dir = filepath.Join(root, "up", "locks")
			}
			b, err := file.New(dir, file.Options{}) // without Notify: at the renewal
			must(t, err)
			defer b.Close()
			ask := func(name string) driver.Request {
				id := driver.NewID()
				return driver.Request{Name: name, ID: id, Owner: id, Client: id, TTL: time.Minute}
			}
			held := ask("held")
			g, err := b.Acquire(t.Context(), held)
			must(t, err)
			renew := func() error { return b.Renew(t.Context(), []driver.Request{held})[0].Err }
			must(t, renew())
			given := ask("released")
			_, err = b.Acquire(t.Context(), given)
			must(t, err)

			lost := make(chan error, 1)
			c, err := dlock.Open(t.Context(), "file://"+dir, dlock.TTL(time.Minute), dlock.Logger(nil)) // with it: soon
			must(t, err)
			defer c.Close()
			var leases []*dlock.Lease
			for _, m := range []dlock.Mutex{c.Mutex("watched"), c.Mutex("watched too", dlock.FixedLease(time.Minute))} {
				l, err := m.Lock(t.Context())
				must(t, err)
				leases = append(leases, l)
				ctx := l.Context(t.Context())
				context.AfterFunc(ctx, func() { lost <- context.Cause(ctx) })
			}
			waits := make(chan error, 1)
			go func() {
				_, err := c.Mutex("held").Lock(t.Context())
				waits <- err
			}()
			for start, q := time.Now(), (driver.Queue{}); len(q.Waiters()) == 0; {
				if q, err = b.Inspect(t.Context(), "held"); err != nil || time.Since(start) > 20*time.Second {
					t.Fatalf("no request waits: %+v, %v", q, err)
				}
			}

			back := move(t, root, dir)
			named := func(what string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "the directory of the locks was moved") || !strings.Contains(err.Error(), dir) {
					t.Errorf("%s: %v", what, err)
				}
			}
			is := func(what string, err error, lost bool) {
				t.Helper()
				named(what, err)
				if errors.Is(err, driver.ErrLost) != lost || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotHeld) {
					t.Errorf("%s: %v; that it matches ErrLost: want %v", what, err, lost)
				}
			}
			is("Renew", renew(), true)
			_, err = b.Acquire(t.Context(), ask("free"))
			is("Acquire", err, false)
			_, err = b.Inspect(t.Context(), "held")
			is("Inspect", err, false)
			_, err = b.List(t.Context())
			is("List", err, false)
			is("Release", b.Release(t.Context(), given), true)
			is("Break", b.Break(t.Context(), "held", g.Token, true), false)
			for range 2 {
				select {
				case err := <-lost:
					is("the cause of a lease's context", err, true)
				case <-time.After(20 * time.Second):
					t.Fatal("the holder did not learn of it before its renewal")
				}
			}
			for _, l := range leases {
				is("Err of a lease", l.Err(), true)
				is("Unlock of a lease", l.Unlock(t.Context()), true)
			}
			select {
			case err := <-waits:
				is("Lock that waited", err, false)
			case <-time.After(20 * time.Second):
				t.Fatal("a wait continues")
			}
			if _, err := os.Stat(dir); err == nil && what != "the folder of the boot is moved" && !strings.HasPrefix(what, "the ") {
				left, err := os.ReadDir(dir)
				if must(t, err); len(left) > 0 {
					t.Errorf("a client of the moved directory left %v in the new one", left)
				}
			}
			if back != nil {
				back()
				if err := renew(); !errors.Is(err, driver.ErrLost) {
					t.Errorf("Renew of a lost request, when the directory is back: %v", err)
				}
				if err := b.Renew(t.Context(), []driver.Request{given})[0].Err; !errors.Is(err, driver.ErrLost) {
					t.Errorf("Renew of a released request, when the directory is back: %v", err)
				}
				r := ask("free")
				if _, err := b.Acquire(t.Context(), r); err != nil {
					t.Errorf("Acquire when the directory is back: %v", err)
				}
				return
			}
			is("Release", b.Release(t.Context(), held), true)
		})
	}
}
