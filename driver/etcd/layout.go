package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/dlock-go/dlock/driver"
)

// The two layouts of keys differ only in what is in this file. In dlock's own, the records of the
// requests are the queue. In the peers' layout (see plain.go) a request has two keys, which are put
// and removed together: a record, as in dlock's own layout, and a key in the peers' queue.

// admits refuses what the layout does not have.
func (b *Backend) admits(r driver.Request) error {
	if b.plain == nil {
		return nil
	}
	switch {
	case r.Join():
		return fmt.Errorf("%w: with keys=plain a hold cannot be joined (docs/etcd-plain.md)", driver.ErrUnsupported)
	case r.Mode != driver.Exclusive:
		return fmt.Errorf("%w: with keys=plain there are exclusive locks only (docs/etcd-plain.md)", driver.ErrUnsupported)
	}
	return b.admitsName(r.Name)
}

// admitsName refuses a name that the layout does not have.
func (b *Backend) admitsName(name string) error {
	if b.plain != nil && strings.Contains(name, "/") {
		return fmt.Errorf("%w name %q: with keys=plain a name has no '/', since the queue of a name would have the queues of all names below it; "+
			"put the part up to the last '/' into the parameter key, as in key=/locks/{name}", driver.ErrInvalid, name)
	}
	return nil
}

// arrival has the parts of the transactions that put a request at the end of its queue.
type arrival struct {
	key     string
	absent  []*pb.Compare   // none of its keys exists
	puts    []*pb.RequestOp // put its keys
	own     []*pb.RequestOp // read its record, unless that is in the queue
	inQueue *pb.RequestOp   // reads its key in the queue
}

// arrivalOf returns these parts for a request that has a key and a lease. The backend's mu is held.
func arrivalOf(rq *ownRequest, l *lease) arrival {
	a := arrival{
		key:     rq.key,
		absent:  []*pb.Compare{absent(rq.key)},
		puts:    []*pb.RequestOp{putOp(rq.key, valueOf(rq.Request, false), l.id)},
		inQueue: keyOp(rq.inQueue()),
	}
	if rq.queueKey != "" {
		a.absent = append(a.absent, absent(rq.queueKey))
		a.puts = append(a.puts, putOp(rq.queueKey, rq.Label, l.id))
		a.own = []*pb.RequestOp{keyOp(rq.key)}
	}
	return a
}

// ownRecord returns the record that the operations of [arrival.own] have read, or nil.
func ownRecord(name string, res *pb.TxnResponse) *record {
	if kvs := res.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
		return decode(name, kvs[0])
	}
	return nil
}

// removal returns the operations that remove the keys of a request. With a lease, a tombstone
// replaces the record.
func removal(r driver.Request, key, queueKey string, tombstoneLease int64) []*pb.RequestOp {
	ops := []*pb.RequestOp{deleteOp(key)}
	if tombstoneLease != 0 {
		ops[0] = putOp(key, valueOf(r, true), tombstoneLease)
	}
	if queueKey != "" {
		ops = append(ops, deleteOp(queueKey))
	}
	return ops
}

// stood reports whether the key in the queue was there when the operations of removal removed it.
// That of a record which is the queue's key itself was compared.
func stood(res *pb.TxnResponse) bool {
	if len(res.Responses) < 2 {
		return true
	}
	return res.Responses[1].GetResponseDeleteRange().GetDeleted() > 0
}

// newQueue makes a queue of the keys in the queue of a name.
func (c *cluster) newQueue(name string, kvs []*mvccpb.KeyValue) *queue {
	if c.plain == nil {
		return newQueue(name, kvs)
	}
	q := newQueue(name, nil)
	for _, kv := range kvs {
		q.put(decodePlain(name, kv))
	}
	return q
}

// readQueued reads a key in the queue of a name.
func (c *cluster) readQueued(name string, kv *mvccpb.KeyValue) *record {
	if c.plain != nil {
		return decodePlain(name, kv)
	}
	return decode(name, kv)
}

// readQueue reads the queue of a name with all that is known of its requests, as of one revision.
func (b *Backend) readQueue(ctx context.Context, name string) (q *queue, rev int64, err error) {
	for {
		res, err := b.get(ctx, b.queueOf(name), 0)
		if err != nil {
			return nil, 0, err
		}
		q, rev = b.newQueue(name, res.Kvs), res.Header.Revision
		if b.plain == nil {
			return q, rev, nil
		}
		records, err := b.get(ctx, b.prefixOf(name), rev)
		if errors.Is(err, rpctypes.ErrCompacted) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		q.describe(name, records.Kvs)
		return q, rev, nil
	}
}

// describe adds the records to a queue in the peers' layout. A record and its key in the queue have
// the same create revision. What has no record is a peer's: its lease stands for its client, and
// with the revision for its ID.
func (q *queue) describe(name string, kvs []*mvccpb.KeyValue) {
	own := make(map[int64]*record, len(kvs))
	for _, kv := range kvs {
		if r := decode(name, kv); !r.tombstone && !r.foreign {
			own[r.rev] = r
		}
	}
	for i, r := range q.arrivals {
		d := own[r.rev]
		if d == nil {
			r.Foreign, r.Label = true, r.describedAsForeign()
			binary.BigEndian.PutUint64(r.Client[8:], uint64(r.lease))
			binary.BigEndian.PutUint64(r.ID[:], uint64(r.lease))
			binary.BigEndian.PutUint64(r.ID[8:], uint64(r.rev))
			r.Owner = r.ID
			continue
		}
		d.queueKey, d.queueMod = r.key, r.mod
		q.arrivals[i], q.rule.Arrivals[i] = d, &d.Entry
		q.records[d.key] = d
		delete(q.records, r.key)
	}
}

// age returns the time since a request arrived, by its client's clock; 0: it is not known.
func (r *record) age() time.Duration {
	if r.arrived.IsZero() {
		return 0
	}
	return max(0, time.Since(r.arrived))
}
