//go:build linux || darwin

package file

import (
	"errors"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestARefusalNamesTheHolder: a refusal has the label and the age of the holder.
func TestARefusalNamesTheHolder(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	r.Label = "till 3"
	g := acquire(t, a, r)
	time.Sleep(20 * time.Millisecond)
	refused := func(what string) {
		t.Helper()
		try := request("a", long)
		try.Wait = false
		_, err := b.Acquire(t.Context(), try)
		by := (*driver.HeldError)(nil)
		if !errors.Is(err, driver.ErrHeld) || !errors.As(err, &by) || by.Label != "till 3" || by.Age < 20*time.Millisecond || by.Age > time.Minute {
			t.Errorf("%s: %v, by %+v", what, err, by)
		}
	}
	refused("a holder")
	waits := background(t, b, request("a", long))
	eventually(t, "one waits", func() bool { return len(inspect(t, a, "a").Waiters()) == 1 })
	refused("a waiter behind the holder")
	j := join(r, g)
	j.Label = "till 3"
	acquire(t, b, j)
	release(t, a, r)
	time.Sleep(20 * time.Millisecond)
	refused("a join that is left of the hold")
	release(t, b, j)
	if err := answer(t, waits); err != nil {
		t.Error(err)
	}
}
