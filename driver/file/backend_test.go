//go:build linux || darwin

package file

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestCloseFreesAndWakes(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	acquire(t, a, r)
	own, theirs := background(t, a, request("a", long)), background(t, b, request("a", long))
	var closers sync.WaitGroup
	for range 2 {
		closers.Go(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closers.Wait()
	if err := answer(t, own); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("own waiter: %v", err)
	}
	if err := answer(t, theirs); err != nil {
		t.Errorf("their waiter: %v", err)
	}
	if err := renew(a, r); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Renew after Close: %v", err)
	}
	if _, err := a.Inspect(t.Context(), "a"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Inspect after Close: %v", err)
	}
	files, err := os.ReadDir(filepath.Join(b.table.path, pipesFolder))
	if err != nil || len(files) != 1 { // that of b
		t.Errorf("pipes: %v, %v", files, err)
	}
}

// Close leaves a Fixed hold too, but nothing that was released or that waits.
func TestFixedOutlivesClose(t *testing.T) {
	r := newRig(t)
	q, fleeting, held := fixed("a", 10*second), request("b", 10*second), fixed("c", 10*second)
	acquire(t, r.a, q)
	acquire(t, r.a, fleeting)
	acquire(t, r.b, held)
	waits := background(t, r.a, fixed("c", 10*second))
	r.advance(6 * second)
	if err := renew(r.a, q); err != nil {
		t.Fatal(err)
	}
	if err := r.a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := answer(t, waits); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a waiter: %v", err)
	}
	for name, n := range map[string]int{"a": 1, "b": 0, "c": 1} {
		if got := inspect(t, r.b, name).Len(); got != n {
			t.Errorf("%q: %d requests after Close, want %d", name, got, n)
		}
	}
	reuse(t, r)
	r.advance(10*second - 1) // since its renewal
	if err := r.try(); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("a moment before its time: %v", err)
	}
	r.advance(1)
	if err := r.try(); err != nil {
		t.Fatalf("at its time: %v", err)
	}
}
