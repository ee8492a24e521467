package etcd

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// txn sends a transaction on a name until it is answered, and calls failed with each error. An
// urgent transaction does not wait for others.
func (c *cluster) txn(ctx context.Context, name string, urgent bool, req *pb.TxnRequest, failed func(error)) (res *pb.TxnResponse, rev int64, err error) {
	err = c.again(ctx, func(ctx context.Context, bound time.Duration) (queued time.Duration, err error) {
		if res, rev, queued, err = c.txns.send(ctx, bound, name, urgent, req); err != nil {
			failed(err)
		}
		return queued, err
	})
	return res, rev, err
}

// page is the greatest number of keys in an answer. With names and labels of 255 bytes, and three
// bytes for each '/', an answer is below 2 MB.
const page = 1000

// get reads the keys with a prefix, linearizably, and all as of one revision, in pages: the given
// one, or the newest if that is 0.
func (c *cluster) get(ctx context.Context, prefix string, at int64) (*pb.RangeResponse, error) {
	for {
		var all *pb.RangeResponse
		err := c.pages(ctx, prefix, at, page, func(res *pb.RangeResponse) (rev int64) {
			if all == nil {
				all = res
			} else {
				all.Kvs = append(all.Kvs, res.Kvs...)
			}
			return all.Header.Revision
		})
		if at == 0 && errors.Is(err, rpctypes.ErrCompacted) { // between two pages
			continue
		}
		return all, err
	}
}

// pages reads the keys with a prefix, at most limit at a time, the first page at that revision. It
// calls each with every page; each returns the revision at which the next page is read (0: the
// newest).
func (c *cluster) pages(ctx context.Context, prefix string, rev, limit int64, each func(*pb.RangeResponse) (rev int64)) error {
	for from := []byte(prefix); ; {
		var res *pb.RangeResponse
		err := c.repeat(ctx, func(ctx context.Context) (err error) {
			res, err = c.kv.Range(ctx, &pb.RangeRequest{Key: from, RangeEnd: end(prefix), Revision: rev, Limit: limit}, callOptions...)
			return err
		})
		if err != nil {
			return err
		}
		rev = each(res)
		if !res.More {
			return nil
		}
		from = append(slices.Clone(res.Kvs[len(res.Kvs)-1].Key), 0)
	}
}

// whole returns the keys with a prefix that a transaction read, and their revision. If they were
// too many for its answer it reads them again.
func (c *cluster) whole(ctx context.Context, prefix string, read *pb.RangeResponse, rev int64) ([]*mvccpb.KeyValue, int64, error) {
	if !read.More {
		return read.Kvs, rev, nil
	}
	res, err := c.get(ctx, prefix, 0)
	if err != nil {
		return nil, 0, err
	}
	return res.Kvs, res.Header.Revision, nil
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

// rangeOp reads the keys with a prefix, at most a page.
func rangeOp(prefix string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end(prefix), Limit: page}}}
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

// rangeIn returns the result of the last read in a transaction's answer.
func rangeIn(res *pb.TxnResponse) *pb.RangeResponse {
	for i := len(res.Responses) - 1; i >= 0; i-- {
		if r := res.Responses[i].GetResponseRange(); r != nil {
			return r
		}
	}
	return &pb.RangeResponse{}
}
