package zookeeper

import (
	"fmt"
	"sync"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

// TestViewIsComputedOnce: all callers that share a listing share its view. Computed by each of n
// callers it would cost n².
func TestViewIsComputedOnce(t *testing.T) {
	const waiters = 100
	b, err := newBackend(options{})
	if err != nil {
		t.Fatal(err)
	}
	l := &listing{s: &session{b: b}, name: "n"}
	for i := range waiters {
		r := driver.Request{ID: driver.NewID()}
		r.Owner = r.ID
		l.children = append(l.children, stem(r)+fmt.Sprintf("%010d", i))
	}
	views := make([]*view, waiters)
	var wg sync.WaitGroup
	for i := range views {
		wg.Go(func() { views[i], _ = l.view() })
	}
	wg.Wait()
	for _, v := range views {
		if v == nil || v != views[0] || len(v.q.Arrivals) != waiters || v.granted != 1 {
			t.Fatalf("a view of its own, or a wrong one: %p, %p", v, views[0])
		}
	}
}
