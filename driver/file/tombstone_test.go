//go:build linux || darwin

package file

import (
	"fmt"
	"testing"
)

// Those names are not used again, but the client that left the tombstones makes other calls.
func TestTombstonesDoNotPileUp(t *testing.T) {
	r := newRig(t)
	other := request("other", long)
	acquire(t, r.a, other)
	for i := range 10 {
		q := request(fmt.Sprint("a", i), 10*second)
		q.Uncertain = true
		acquire(t, r.a, q)
		release(t, r.a, q)
	}
	r.advance(10*second - 1)
	renew(r.a, other)
	if n := len(states(t, r.a)); n != 11 {
		t.Fatalf("%d states before the end", n)
	}
	r.advance(1)
	for range 5 {
		if err := renew(r.a, other); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(states(t, r.a)); n != 1 {
		t.Errorf("%d states after the tombstones' time", n)
	}
}

// A release that is repeated leaves one tombstone.
func TestReleaseAgainLeavesOneTombstone(t *testing.T) {
	b := openTest(t, t.TempDir())
	r := request("a", long)
	r.Uncertain = true
	for range 3 {
		b.Release(t.Context(), r)
	}
	if s, err := b.read(slot("a")); err != nil || len(s.tombstones) != 1 {
		t.Errorf("%d tombstones, %v", len(s.tombstones), err)
	}
}
