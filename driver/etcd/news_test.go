package etcd

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver"
)

func TestQueueFollowsEvents(t *testing.T) {
	n := &nameState{name: "n", queue: newQueue("n", nil), rev: 10, waiting: map[string]*ownRequest{}}
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

// lateReads is a cluster whose answers to reads are held until answer is closed. They show the keys
// as of the revision.
type lateReads struct {
	*fakeCluster
	answer chan struct{}
	rev    int64
	kvs    []*mvccpb.KeyValue
}

func (c *lateReads) Range(ctx context.Context, _ *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	select {
	case <-c.answer:
		return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: c.rev}, Kvs: c.kvs}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestEventsBeforeTheReadCount: the holder releases when the watch is confirmed, and the answer to
// the read that follows is on its way. Only the event reports the release, and it comes before the
// answer.
func TestEventsBeforeTheReadCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, l, holder := holding(s)
		defer b.life.End()
		id := driver.NewID()
		waiter := newOwnRequest(driver.Request{Name: holder.Name, ID: id, Owner: id, TTL: l.ttl, Wait: true})
		b.mu.Lock()
		waiter.lease, l.requests = l, l.requests+1
		b.assignKey(waiter)
		waiter.rev, b.requests[id] = 6, waiter
		n := b.nameOf(holder.Name)
		n.waiting[waiter.key], n.watch = waiter, b.watches.add(n.prefix, ofName{b, n})
		n.unchecked = append(n.unchecked, waiter)
		watch := n.watch.id
		b.mu.Unlock()
		reads := &lateReads{fakeCluster: s, answer: make(chan struct{}), rev: 10}
		for _, rq := range []*ownRequest{holder, waiter} {
			reads.kvs = append(reads.kvs, &mvccpb.KeyValue{Key: []byte(rq.key), Value: []byte(valueOf(rq.Request, false)), CreateRevision: rq.rev, ModRevision: rq.rev})
		}
		b.kv = reads

		b.watches.receive(&pb.WatchResponse{WatchId: watch, Created: true})
		synctest.Wait()
		b.watches.receive(&pb.WatchResponse{WatchId: watch, Events: []*mvccpb.Event{
			{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(holder.key), ModRevision: 11}},
		}})
		if len(waiter.wake) > 0 {
			t.Error("a waiter is woken before the read was answered")
		}
		close(reads.answer)
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if !waiter.granted || len(waiter.wake) == 0 {
			t.Errorf("the holder released between the watch and the read; the next waiter is granted: %t, woken: %t", waiter.granted, len(waiter.wake) > 0)
		}
	})
}
