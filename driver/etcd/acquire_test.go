package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
)

// readBy is the answer to a transaction that reads.
func readBy(rev int64, succeeded bool, kvs ...*mvccpb.KeyValue) *pb.TxnResponse {
	return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: rev}, Succeeded: succeeded, Responses: []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: kvs}}},
	}}
}

// watching returns a backend that watches a name with other requests, and a request that may wait
// there.
func watching(c *fakeCluster) (b *Backend, l *lease, r driver.Request, n *nameState) {
	b, l, _ = holding(c)
	b.leases.pools[6] = newPool(l)
	id := driver.NewID()
	n = b.nameOf("n")
	n.contended, n.watch, n.queue = true, &watch{}, newQueue("n", nil)
	return b, l, driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl, Wait: true}, n
}

// acquiring begins an Acquire, and returns the channel of its grant.
func acquiring(t *testing.T, b *Backend, r driver.Request) chan driver.Grant {
	done := make(chan driver.Grant, 1)
	go func() {
		g, err := b.Acquire(t.Context(), r)
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		done <- g
	}()
	return done
}

// TestLeaseDiesBesideItsPut: a put is executed, and its lease is found dead before the answer
// comes. The client's earlier view of the queue does not grant the request behind another one.
func TestLeaseDiesBesideItsPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, l, r, n := watching(s)
		defer b.life.End()
		kv := func(r driver.Request, key string, rev int64) *mvccpb.KeyValue {
			return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(valueOf(r, false)), CreateRevision: rev, ModRevision: rev}
		}
		other := func(rev int64) *mvccpb.KeyValue {
			id := driver.NewID()
			return kv(driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl}, "dlock/n/sother-0", rev)
		}
		puts := 0
		s.txn = func(req *pb.TxnRequest) (*pb.TxnResponse, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			key := b.requests[r.ID].key
			if puts++; puts == 1 {
				own := kv(r, key, 9)
				n.queue.put(decode("n", own)) // the request ahead has left
				n.rev = 10
				b.mu.Unlock()
				b.leases.end(l)
				b.mu.Lock()
				return readBy(9, true, other(8), own), nil
			}
			own, first := kv(r, key, 12), other(11)
			n.queue = newQueue("n", []*mvccpb.KeyValue{first, own})
			n.rev = 12
			return readBy(12, true, first, own), nil
		}
		done := acquiring(t, b, r)
		synctest.Wait()
		if len(done) != 0 {
			t.Fatalf("granted %+v behind another request", <-done)
		}
		b.mu.Lock()
		if rq := b.requests[r.ID]; puts != 2 || rq.lease.waiting != 1 {
			t.Errorf("%d puts, %d requests wait under the lease", puts, rq.lease.waiting)
		}
		n.queue.drop("dlock/n/sother-0")
		n.wakeGranted()
		b.mu.Unlock()
		if g := <-done; g.Token != 12 {
			t.Errorf("granted %+v", g)
		}
	})
}

// TestResentBesideOthers: of many requests that arrive together, one whose answer was lost is sent
// again. It finds its own key, and does not read the queue, which then has thousands of keys.
func TestResentBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, _, r, n := watching(s)
		defer b.life.End()
		n.arriving = 1
		var own *mvccpb.KeyValue
		puts := 0
		s.txn = func(req *pb.TxnRequest) (*pb.TxnResponse, error) {
			if puts++; puts == 1 {
				return nil, status.Error(codes.Unavailable, "the connection was cut")
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			key := b.requests[r.ID].key
			own = &mvccpb.KeyValue{Key: []byte(key), Value: []byte(valueOf(r, false)), CreateRevision: 9, ModRevision: 9}
			if len(req.Success) != 1 || len(req.Failure) != 1 {
				t.Errorf("it sends %v", req)
			}
			if read := req.Failure[0].GetRequestRange(); string(read.GetKey()) != key || read.GetRangeEnd() != nil {
				t.Errorf("it reads %q to %q", read.GetKey(), read.GetRangeEnd())
			}
			return readBy(12, false, own), nil
		}
		done := acquiring(t, b, r)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if len(done) != 0 {
			t.Fatalf("granted %+v before the queue ahead is known", <-done)
		}
		b.mu.Lock()
		n.queue.put(decode("n", own))
		n.rev = 9
		n.wakeGranted()
		b.mu.Unlock()
		if g := <-done; g.Token != 9 || puts != 2 {
			t.Errorf("granted %+v after %d puts", g, puts)
		}
	})
}

// TestARefusalNamesTheHolder: the answer that refuses a request, or the watch when its wait ends,
// names the holder, without a further call.
func TestARefusalNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, l, r, n := watching(s)
		defer b.life.End()
		kv := func(kind string, rev int64, r driver.Request) *mvccpb.KeyValue {
			return &mvccpb.KeyValue{Key: []byte("dlock/n/" + kind + "other-0"), Value: []byte(valueOf(r, false)), CreateRevision: rev, ModRevision: rev}
		}
		id := driver.NewID()
		holder := driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl, Label: "till 3"}
		join := holder
		join.ID, join.Token, join.Label = driver.NewID(), 8, "till 4"
		asks := 0
		for _, c := range []struct {
			what  string
			there []*mvccpb.KeyValue
			label string
		}{
			{"a holder", []*mvccpb.KeyValue{kv("s", 8, holder), kv("j", 9, join)}, "till 3"},
			{"a join that is left of the hold", []*mvccpb.KeyValue{kv("j", 9, join)}, "till 4"},
		} {
			time.Sleep(500 * time.Millisecond)
			s.txn = func(req *pb.TxnRequest) (*pb.TxnResponse, error) {
				asks++
				puts := req.Success[0].GetRequestPut()
				switch {
				case puts == nil: // the waiting request is removed
					return readBy(11, true), nil
				case len(req.Success) == 1: // put only if the name is free
					return readBy(10, false, c.there...), nil
				}
				own := &mvccpb.KeyValue{Key: puts.Key, Value: puts.Value, CreateRevision: 10, ModRevision: 10}
				return readBy(10, true, append(c.there, own)...), nil
			}
			n.queue = newQueue("n", c.there)
			for _, wait := range []bool{false, true} {
				r.ID = driver.NewID()
				r.Owner, r.Wait, asks = r.ID, wait, 0
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := b.Acquire(ctx, r)
				cancel()
				by := (*driver.HeldError)(nil)
				if !errors.Is(err, driver.ErrHeld) || !errors.As(err, &by) || by.Label != c.label {
					t.Errorf("%s, wait %t: %v, by %+v", c.what, wait, err, by)
				} else if now := time.Since(start); by.Age < 500*time.Millisecond+now || by.Age > 3*time.Second+now {
					t.Errorf("%s, wait %t: its age is %s", c.what, wait, by.Age)
				}
				if errors.Is(err, context.DeadlineExceeded) != wait {
					t.Errorf("%s, wait %t: %v", c.what, wait, err)
				}
				if !wait && asks != 1 {
					t.Errorf("%s: the refusal took %d transactions", c.what, asks)
				}
				synctest.Wait()
			}
		}
	})
}

// TestARefusalNamesNoOther: a refusal names neither the request itself, if its grant came too late
// for its wait, nor a key that cannot be read.
func TestARefusalNamesNoOther(t *testing.T) {
	id := driver.NewID()
	own := &record{Entry: driver.Entry{Request: driver.Request{ID: id, Owner: id}}, key: "s", rev: 1}
	foreign := &record{foreign: true, key: "f", rev: 1}
	for _, r := range []*record{own, foreign} {
		q := newQueue("n", nil)
		q.put(r)
		if err := q.held("s"); err != driver.ErrHeld {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
