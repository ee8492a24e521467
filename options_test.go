package dlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// TestOptionsAreOfOneKind: an option of a lock is none of a client, and the other way round, so
// that a wrong one does not compile.
func TestOptionsAreOfOneKind(t *testing.T) {
	for name, o := range map[string]dlock.LockOption{"FixedLease": dlock.FixedLease(time.Second), "Wait": dlock.Wait(time.Second)} {
		if _, ok := o.(dlock.Option); ok {
			t.Errorf("%s is an option of a client", name)
		}
	}
	for name, o := range map[string]dlock.Option{"Identity": dlock.Identity("a"), "Logger": dlock.Logger(nil), "Observe": dlock.Observe(dlock.Hooks{})} {
		if _, ok := o.(dlock.LockOption); ok {
			t.Errorf("%s is an option of a lock", name)
		}
	}
}

// TestTTLBesideFixedLease: a lease is renewed or not; a lock that asks for both is refused, in
// either order.
func TestTTLBesideFixedLease(t *testing.T) {
	c, err := dlock.Open(t.Context(), "memory:", dlock.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, opts := range [][]dlock.LockOption{
		{dlock.TTL(time.Second), dlock.FixedLease(time.Second)}, {dlock.FixedLease(time.Second), dlock.TTL(time.Second)},
	} {
		if _, err := c.Mutex("a", opts...).Lock(t.Context()); !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), "both TTL and FixedLease") {
			t.Errorf("%v", err)
		}
	}
	// the TTL of the client is no contradiction
	lease, err := c.Mutex("a", dlock.FixedLease(time.Second)).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}
