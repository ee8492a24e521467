package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// TestClocks: where holds expire by a server's wall clock, one ends early when that clock is set
// ahead, the next hold has a greater token, also after the clock was set back, and excludes others.
// Elsewhere the clock changes nothing.
func TestClocks(t *testing.T) {
	for _, b := range backends {
		if !slices.ContainsFunc(b.faults, func(f fault) bool { return f.name == clockStepped.name }) || b.name == "redlock" {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			url, servers := b.start(t, t.TempDir())
			open := func() dlock.Mutex {
				c, err := dlock.Open(t.Context(), url, dlock.TTL(10*time.Second), dlock.Logger(nil))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c.Mutex("clock")
			}
			first, second := open(), open()
			l, err := first.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			servers[0].Step(t, time.Minute)
			next, err := second.TryLock(t.Context())
			if !b.walled {
				if !errors.Is(err, dlock.ErrHeld) || l.Err() != nil {
					t.Errorf("after the clock was set ahead another client got %v; the holder: %v", err, l.Err())
				}
				return
			}
			if err != nil || next.Token() <= l.Token() {
				t.Fatalf("after the clock was set ahead another client got %v: %v", next, err)
			}
			if err := l.Renew(t.Context()); !errors.Is(err, dlock.ErrLost) {
				t.Errorf("a renewal of the first hold returned %v", err)
			}
			if err := next.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			servers[0].Step(t, 0)
			last, err := first.Lock(t.Context())
			if err != nil || last.Token() <= next.Token() {
				t.Fatalf("after the clock was set back a client got %v: %v", last, err)
			}
			if _, err := second.TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
				t.Errorf("beside it another one got %v", err)
			}
		})
	}
}
