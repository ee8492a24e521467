package etcd

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// TestNoticesOf: the keys of the notices to a client follow from the key of its hold, if they are
// within the prefix of the breaking client; and they are under no name.
func TestNoticesOf(t *testing.T) {
	backend := func(root, prefix string) *Backend {
		base := escape.Replace(root) + "/" + escape.Replace(prefix)
		b := &Backend{cluster: cluster{base: base}, id: newBackendID(escape.Replace(prefix)), names: map[string]*nameState{}}
		return b
	}
	for _, c := range []struct {
		root                         string
		holder, holds, breaker, name string // prefix and name, of both clients
		reaches                      bool
	}{
		{"dlock", "", "a", "", "a", true},
		{"team/app", "", "x/y%z", "", "x/y%z", true},
		{"dlock", "p", "a", "p", "a", true},
		{"dlock", "p/%/", "a", "p/%/", "a", true},
		{"dlock", "p/", "a", "", "p/a", true},
		{"dlock", "pa", "", "", "pa", true}, // (an empty name is not a valid one)
		{"dlock", "", "p/a", "p/", "a", false},
		{"dlock", "p", "qa", "pq", "a", false},
	} {
		holder, breaker := backend(c.root, c.holder), backend(c.root, c.breaker)
		rq := newOwnRequest(driver.Request{Name: c.holds, ID: driver.NewID()})
		holder.assignKey(rq)
		if !strings.HasPrefix(rq.key, breaker.prefixOf(c.name)) {
			t.Fatalf("%+v: these are two names", c)
		}
		want := ""
		if c.reaches {
			want = noticesUnder(holder.base, holder.id)
		}
		if got := breaker.noticesOf(rq.key); got != want {
			t.Errorf("%+v: the notices of %s are %q, want %q", c, rq.key, got, want)
		}
		for _, b := range []*Backend{holder, breaker, backend(c.root, "")} {
			if name, ok := b.keyName(noticesUnder(holder.base, holder.id) + "1f"); ok {
				t.Errorf("%+v: a notice is taken for a request under %q", c, name)
			}
		}
	}
	b := backend("dlock", "")
	for _, key := range []string{"dlock/a/sold-0", "dlock/a/s", "dlock/a/", "dlock/a/sx.-1", "dlock/a/sx.-5-1", "dlock/a/sx.99-1", "dlock/a/sx.x-1", "dlock/"} {
		if to := b.noticesOf(key); to != "" && to != "dlock/%broken-old-" {
			t.Errorf("the notices of %s are %q", key, to)
		}
	}
}

// TestHeed: a notice ends the hold that it names, and no other, whatever else it contains.
func TestHeed(t *testing.T) {
	b, _, rq := holding(oneTerm())
	defer b.life.End()
	lost := make(chan driver.ID, 10)
	b.lost = func(id driver.ID) { lost <- id }
	other := newOwnRequest(driver.Request{Name: "other", ID: driver.NewID(), TTL: time.Minute})
	other.rev, other.until = 6, time.Now().Add(time.Minute)
	coming := newOwnRequest(driver.Request{Name: "coming", ID: driver.NewID(), TTL: time.Minute})
	waits := newOwnRequest(driver.Request{Name: "waits", ID: driver.NewID(), TTL: time.Minute})
	waits.rev = 7
	for _, r := range []*ownRequest{other, coming, waits} {
		b.requests[r.ID] = r
	}
	heed := func(text string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.heed(&mvccpb.KeyValue{Value: []byte(text)})
	}
	heed("")
	heed("not an ID, " + driver.NewID().String() + " " + strings.ToUpper(other.ID.String())[:31])
	select {
	case id := <-lost:
		t.Fatalf("%s was lost", id)
	case <-time.After(10 * time.Millisecond):
	}
	for range 2 { // a notice may come twice
		heed(rq.ID.String())
	}
	if id := <-lost; id != rq.ID || b.requests[id] != nil || b.losses[id] == nil {
		t.Errorf("%s was lost", id)
	}
	heed(waits.ID.String() + " " + coming.ID.String())
	if a, c := <-lost, <-lost; a != waits.ID && c != waits.ID || a != coming.ID && c != coming.ID {
		t.Errorf("%s and %s were lost", a, c)
	}
	if waits.rev != 0 || b.requests[other.ID] == nil {
		t.Error("a waiter was not sent back to the queue, or another hold was lost too")
	}
	select {
	case id := <-lost:
		t.Errorf("%s was lost", id)
	case <-time.After(10 * time.Millisecond):
	}
}

// TestNoticesAfterTheirWatchWasCancelled: the server cancels the watch of a client that fell behind
// a compaction. A notice that was put meanwhile is read when the watch is renewed.
func TestNoticesAfterTheirWatchWasCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, _, rq := holding(s)
		defer b.life.End()
		lost := make(chan driver.ID, 1)
		b.lost = func(id driver.ID) { lost <- id }
		reads := &lateReads{fakeCluster: s, answer: make(chan struct{}), rev: 10}
		b.kv = reads
		b.mu.Lock()
		b.awaitNotices()
		first := b.notices.watch.id
		b.mu.Unlock()
		b.watches.receive(&pb.WatchResponse{WatchId: first, Created: true})
		synctest.Wait() // its read is under way, and does not count once the watch is cancelled
		b.watches.receive(&pb.WatchResponse{WatchId: first, Canceled: true, CompactRevision: 9})
		close(reads.answer)
		time.Sleep(time.Second)
		synctest.Wait()
		reads.kvs = []*mvccpb.KeyValue{{Key: []byte(noticesUnder(b.base, b.id) + "1"), Value: []byte(rq.ID.String()), ModRevision: 10}}
		b.mu.Lock()
		again := b.notices.watch.id
		b.mu.Unlock()
		if again == 0 || again == first {
			t.Fatalf("the watch of notices was %d, and is %d after it was cancelled", first, again)
		}
		b.watches.receive(&pb.WatchResponse{WatchId: first, Events: []*mvccpb.Event{{Kv: reads.kvs[0]}}})
		synctest.Wait()
		if len(lost) != 0 {
			t.Error("a notice of a cancelled watch is acted on")
		}
		b.watches.receive(&pb.WatchResponse{WatchId: again, Created: true})
		synctest.Wait()
		if len(lost) != 1 || <-lost != rq.ID {
			t.Error("a break while there was no watch is not known")
		}
	})
}
