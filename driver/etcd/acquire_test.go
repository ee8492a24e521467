package etcd

import (
	"context"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver"
)

// store answers transactions as a test says, and everything else as a cluster.
type store struct {
	*cluster
	txn func(*pb.TxnRequest) (*pb.TxnResponse, error)
}

func (s *store) Txn(_ context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return s.txn(r)
}

func (c *cluster) LeaseGrant(context.Context, *pb.LeaseGrantRequest, ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.granted++
	return &pb.LeaseGrantResponse{ID: 100 + c.granted, TTL: c.ttl}, c.full
}

// storing is proving, with a store.
func storing(t *testing.T, s *store) (*Backend, *lease, *mine) {
	b, l, m := proving(t, s.cluster)
	b.kv, b.txns.kv = s, s
	b.verdict.Store(&verdict{}) // it knows the cluster
	return b, l, m
}

// readBy is the answer to a transaction that reads.
func readBy(rev int64, did bool, kvs ...*mvccpb.KeyValue) *pb.TxnResponse {
	return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: rev}, Succeeded: did, Responses: []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: kvs}}},
	}}
}

// TestLeaseDiesBesideItsPut: a put is executed, and its lease is found dead before the answer
// comes. What the client saw of the queue until then does not let the request in behind a stranger.
func TestLeaseDiesBesideItsPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{cluster: &cluster{read: 1, keep: 1, list: 1}}
		b, l, _ := storing(t, s)
		defer b.cancel()
		b.pools[6] = &pool{leases: []*lease{l}, turn: make(chan struct{}, 1)}
		id := driver.NewID()
		r := driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl, Wait: true}
		n := b.of("n")
		n.shared, n.watch, n.q = true, 1, read("n", nil)
		kv := func(r driver.Request, key string, rev int64) *mvccpb.KeyValue {
			return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value(r, false)), CreateRevision: rev, ModRevision: rev}
		}
		stranger := func(rev int64) *mvccpb.KeyValue {
			id := driver.NewID()
			return kv(driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl}, "dlock/n/sother-0", rev)
		}
		puts := 0
		s.txn = func(req *pb.TxnRequest) (*pb.TxnResponse, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			key := b.mine[id].key
			if puts++; puts == 1 {
				own := kv(r, key, 9)
				n.q.put(decode("n", own)) // who was ahead has left
				n.rev = 10
				b.dead(l)
				return readBy(9, true, stranger(8), own), nil
			}
			own, first := kv(r, key, 12), stranger(11)
			n.q = read("n", []*mvccpb.KeyValue{first, own})
			n.rev = 12
			return readBy(12, true, first, own), nil
		}
		done := make(chan driver.Grant, 1)
		go func() {
			g, err := b.Acquire(t.Context(), r)
			if err != nil {
				t.Errorf("Acquire: %v", err)
			}
			done <- g
		}()
		synctest.Wait()
		if len(done) != 0 {
			t.Fatalf("granted %+v behind a stranger", <-done)
		}
		b.mu.Lock()
		if m := b.mine[id]; puts != 2 || m.lease.waiting != 1 {
			t.Errorf("%d puts, %d requests wait under the lease", puts, m.lease.waiting)
		}
		n.q.drop("dlock/n/sother-0")
		n.tell(b)
		b.mu.Unlock()
		if g := <-done; g.Token != 12 {
			t.Errorf("granted %+v", g)
		}
	})
}

// TestRemoveWithoutSpace: where no tombstone can be put the key is deleted.
func TestRemoveWithoutSpace(t *testing.T) {
	for _, c := range []struct {
		what       string
		grant, put bool // there is space for that; a put that takes the last of it is executed
		was        bool
		txns       int
	}{
		{"for a tombstone's lease", false, false, true, 1},
		{"for a tombstone", true, false, true, 2},
		{"after the tombstone", true, true, false, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{cluster: &cluster{read: 1, keep: 1, list: 1}}
			b, _, m := storing(t, s)
			defer b.cancel()
			if !c.grant {
				s.full = rpctypes.ErrGRPCNoSpace
			}
			txns, grave := 0, false
			s.txn = func(r *pb.TxnRequest) (*pb.TxnResponse, error) {
				txns++
				switch {
				case r.Success[0].GetRequestPut() != nil:
					grave = c.put
					return nil, rpctypes.ErrGRPCNoSpace
				case grave:
					return readBy(9, false, &mvccpb.KeyValue{Key: []byte(m.key), Value: []byte(value(m.r, true)), ModRevision: 8}), nil
				}
				return readBy(9, true), nil
			}
			m.uncertain = true
			if was, err := b.remove(t.Context(), m); err != nil || was != c.was || txns != c.txns || m.key != "" {
				t.Errorf("no space %s: it was there: %t, %v; %d transactions; it has the key %q", c.what, was, err, txns, m.key)
			}
			if !c.was && m.tries == 0 {
				t.Errorf("no space %s: nobody knows that it may have been removed", c.what)
			}
		})
	}
}
