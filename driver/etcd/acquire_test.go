package etcd

import (
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

// watching returns a backend that watches a name with others, and a request that may wait there.
func watching(c *fakeCluster) (b *Backend, l *lease, r driver.Request, n *nameState) {
	b, l, _ = holding(c)
	b.pools[6] = newPool(l)
	id := driver.NewID()
	n = b.nameOf("n")
	n.contended, n.watchID, n.queue = true, 1, newQueue("n", nil)
	return b, l, driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl, Wait: true}, n
}

// acquiring begins an Acquire, and returns where its grant comes.
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
// comes. What the client saw of the queue until then does not let the request in behind another.
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
				n.queue.put(decode("n", own)) // who was ahead has left
				n.rev = 10
				b.leaseEnded(l)
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
// again. It finds its own key, and does not read the queue, which has thousands of keys then.
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
			t.Fatalf("granted %+v before anybody knows what stands ahead", <-done)
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
