package etcd

import (
	"fmt"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// TestGrantedWaitersAreWoken: no others are.
func TestGrantedWaitersAreWoken(t *testing.T) {
	n := &nameState{name: "n", queue: newQueue("n", nil), waiting: map[string]*ownRequest{}}
	var rqs []*ownRequest
	for i := range 128 {
		id := driver.ID{byte(i + 1)}
		rq := newOwnRequest(driver.Request{ID: id, Owner: id})
		rq.key, rq.rev, rq.checked = fmt.Sprint(i), int64(i+1), true
		n.waiting[rq.key] = rq
		n.queue.put(&record{Entry: driver.Entry{Request: rq.Request}, key: rq.key, rev: rq.rev})
		rqs = append(rqs, rq)
	}
	n.rev = 200
	for i := range rqs {
		n.wakeGranted()
		for j, rq := range rqs {
			if woken := len(rq.wake) == 1; woken != (j == i) {
				t.Fatalf("with %d gone, waiter %d is woken: %t", i, j, woken)
			}
		}
		<-rqs[i].wake
		delete(n.waiting, rqs[i].key)
		n.queue.drop(rqs[i].key)
	}
}

// TestOnlyWaitersAreChecked: a request that went back to the end of the queue is not admitted at
// its old place.
func TestOnlyWaitersAreChecked(t *testing.T) {
	rq := newOwnRequest(driver.Request{ID: driver.ID{1}, Owner: driver.ID{1}})
	rq.key = "1"
	n := &nameState{name: "n", queue: newQueue("n", nil), waiting: map[string]*ownRequest{"2": {standing: standing{key: "2"}}}, unchecked: []*ownRequest{rq}}
	if n.wakeGranted(); rq.checked || len(n.unchecked) != 0 {
		t.Errorf("a request that does not wait is checked: %t; %d are unchecked", rq.checked, len(n.unchecked))
	}
}
