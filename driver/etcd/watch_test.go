package etcd

import (
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

func TestQueueFollowsEvents(t *testing.T) {
	n := &nameState{name: "n", queue: newQueue("n", nil), rev: 10, waiting: map[string]*request{}}
	kv := func(key string, create, mod int64, mode driver.Mode, tombstone bool) *mvccpb.KeyValue {
		id := driver.ID{byte(create)}
		r := record{Entry: driver.Entry{Request: driver.Request{ID: id, Owner: id, Mode: mode}}, tombstone: tombstone}
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(r.encode()), CreateRevision: create, ModRevision: mod}
	}
	put := func(kv *mvccpb.KeyValue) *mvccpb.Event { return &mvccpb.Event{Kv: kv} }
	gone := func(key string, rev int64) *mvccpb.Event {
		return &mvccpb.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}}
	}
	order := func() (keys []string) {
		for i, r := range n.queue.arrivals {
			keys = append(keys, r.key)
			if n.queue.rule.Arrivals[i] != &r.Entry {
				t.Fatalf("the rule sees another queue")
			}
		}
		return keys
	}
	b := &Backend{}
	b.apply(n, []*mvccpb.Event{put(kv("c", 12, 12, 0, false)), put(kv("a", 11, 13, 0, false)), put(kv("old", 9, 9, 0, false)), put(kv("b", 14, 14, 0, false))})
	if got := order(); !slices.Equal(got, []string{"a", "c", "b"}) {
		t.Errorf("the order is %v", got)
	}
	b.apply(n, []*mvccpb.Event{put(kv("c", 12, 15, 0, true)), gone("a", 16), put(kv("a", 17, 17, 0, false)), gone("a", 13)})
	if got := order(); !slices.Equal(got, []string{"b", "a"}) || n.rev != 17 {
		t.Errorf("the order is %v, as of %d", got, n.rev)
	}
	if d := n.queue.ahead(17); len(d.Arrivals) != 1 || d.Arrivals[0] != &n.queue.records["b"].Entry {
		t.Errorf("ahead of a: %v", d.Arrivals)
	}
}
