package etcd

import (
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// TestRemoveWithoutSpace: if no tombstone can be put the key is deleted.
func TestRemoveWithoutSpace(t *testing.T) {
	for _, c := range []struct {
		what       string
		grant, put bool // there is space for it; a put that takes the last of the space is executed
		removed    bool
		txns       int
	}{
		{"for a tombstone's lease", false, false, true, 1},
		{"for a tombstone", true, false, true, 2},
		{"after the tombstone", true, true, false, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := oneTerm()
			b, _, rq := holding(s)
			defer b.life.End()
			if !c.grant {
				s.full = rpctypes.ErrGRPCNoSpace
			}
			txns, tombstone := 0, false
			s.txn = func(r *pb.TxnRequest) (*pb.TxnResponse, error) {
				txns++
				switch {
				case r.Success[0].GetRequestPut() != nil:
					tombstone = c.put
					return nil, rpctypes.ErrGRPCNoSpace
				case tombstone:
					return readBy(9, false, &mvccpb.KeyValue{Key: []byte(rq.key), Value: []byte(valueOf(rq.Request, true)), ModRevision: 8}), nil
				}
				return readBy(9, true), nil
			}
			rq.uncertain = true
			if removed, err := b.remove(t.Context(), rq); err != nil || removed != c.removed || txns != c.txns || rq.key != "" {
				t.Errorf("no space %s: it was there: %t, %v; %d transactions; it has the key %q", c.what, removed, err, txns, rq.key)
			}
			if !c.removed && rq.unknownReleases == 0 {
				t.Errorf("no space %s: it is not recorded that the key may have been removed", c.what)
			}
		})
	}
}
