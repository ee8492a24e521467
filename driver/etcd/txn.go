package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// txn sends a transaction on a name until it is answered, and calls failed with each error. Nothing
// that is on its way keeps one that is urgent.
func (b *Backend) txn(ctx context.Context, name string, urgent bool, req *pb.TxnRequest, failed func(error)) (res *pb.TxnResponse, rev int64, err error) {
	err = b.again(ctx, func(ctx context.Context, bound time.Duration) (queued time.Duration, err error) {
		if res, rev, queued, err = b.txns.send(ctx, bound, name, urgent, req); err != nil {
			failed(err)
		}
		return queued, err
	})
	return res, rev, err
}

// get reads the keys with a prefix, linearizably.
func (b *Backend) get(ctx context.Context, prefix string) (*pb.RangeResponse, error) {
	var res *pb.RangeResponse
	err := b.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end(prefix)}, callOptions...)
		return err
	})
	return res, err
}

// The parts of a transaction.

func putOp(key, value string, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}}}
}

func deleteOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
}

// keyOp reads one key.
func keyOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}
}

// rangeOp reads all keys with a prefix.
func rangeOp(prefix string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end(prefix)}}}
}

// absent: the key does not exist.
func absent(key string) *pb.Compare { return is(key, 0) }

// is: the key has that mod revision.
func is(key string, mod int64) *pb.Compare {
	return &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_MOD, Key: []byte(key), TargetUnion: &pb.Compare_ModRevision{ModRevision: mod}}
}

// unchanged: no key with the prefix was put after that revision.
func unchanged(prefix string, rev int64) *pb.Compare {
	return &pb.Compare{Result: pb.Compare_LESS, Target: pb.Compare_MOD, Key: []byte(prefix), RangeEnd: end(prefix), TargetUnion: &pb.Compare_ModRevision{ModRevision: rev + 1}}
}

// rangeIn returns the last read of a transaction's answer.
func rangeIn(res *pb.TxnResponse) *pb.RangeResponse {
	for i := len(res.Responses) - 1; i >= 0; i-- {
		if r := res.Responses[i].GetResponseRange(); r != nil {
			return r
		}
	}
	return &pb.RangeResponse{}
}
