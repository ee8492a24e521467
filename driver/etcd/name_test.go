package etcd

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestSlotsAreUsedAgain(t *testing.T) {
	b := &Backend{cluster: cluster{base: "dlock/"}, id: "x", names: map[string]*nameState{}}
	take := func() *ownRequest {
		rq := &ownRequest{Request: driver.Request{Name: "n"}}
		b.assignKey(rq)
		return rq
	}
	one, two := take(), take()
	if one.slot != 0 || two.slot != 1 {
		t.Fatalf("slots %d and %d", one.slot, two.slot)
	}
	b.freeKey("n", 0, time.Now().Add(time.Hour))
	if rq := take(); rq.slot != 2 {
		t.Errorf("the slot of a tombstone was given away: %d", rq.slot)
	}
	b.freeKey("n", 1, time.Time{})
	if rq := take(); rq.slot != 1 {
		t.Errorf("got slot %d; 1 is free", rq.slot)
	}
	b.purgeNames(time.Now().Add(2 * time.Hour))
	if rq := take(); rq.slot != 0 {
		t.Errorf("got slot %d; the tombstone of 0 is gone", rq.slot)
	}
}
