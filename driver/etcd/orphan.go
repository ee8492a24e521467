package etcd

import (
	"context"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// An orphan is a key of this client that none of its requests has: a late copy of an acquire put
// it, under a lease that the client keeps alive. Audits find orphans.

// expect records which requests have a key under a lease. The function that it returns compares
// them with the keys that an audit found there: a request whose key is missing has lost it. An
// orphan is removed when two audits in a row found it; found once, it may be the key of a request
// for which the answer to the put is still under way.
func (b *Backend) expect(l *lease) (found func(keys, orphans map[string]bool) map[string]bool) {
	expected := map[*ownRequest]int64{} // with the revisions that put their keys
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, rq := range b.requests {
		if rq.lease == l && rq.rev != 0 && !rq.ended {
			expected[rq] = rq.rev
		}
	}
	return func(keys, before map[string]bool) map[string]bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for rq, rev := range expected {
			if (!keys[rq.key] || !keys[rq.inQueue()]) && rq.lease == l && rq.rev == rev && !rq.ended {
				b.vanished(rq)
			}
		}
		orphans := map[string]bool{}
		for key := range keys {
			switch {
			case !b.isOrphan(key, l.id):
			case before[key]:
				b.removeOrphan(key, l.id)
			default:
				orphans[key] = true
			}
		}
		return orphans
	}
}

// splitKey returns the name and the slot of one of this client's records. It reports false for any
// other key.
func (b *Backend) splitKey(key string) (name string, slot int, ok bool) {
	name, ok = b.keyName(key)
	last := key[strings.LastIndexByte(key, '/')+1:]
	id, number, found := strings.Cut(last, "-")
	slot, err := strconv.Atoi(number)
	return name, slot, ok && found && err == nil && len(id) > 1 && id[1:] == b.id
}

// slotOf returns the name and the slot of a key under a lease of ours: a record, or its key in the
// peers' queue. It reports false for any other key.
func (b *Backend) slotOf(key string, lease int64) (name string, slot int, ok bool) {
	if name, slot, ok = b.splitKey(key); ok || b.plain == nil {
		return name, slot, ok
	}
	return b.plain.splitKey(key, lease)
}

// isOrphan reports whether a key under a lease of ours is one of our own keys that is not in use.
// b.mu is held.
func (b *Backend) isOrphan(key string, lease int64) bool {
	name, slot, ok := b.slotOf(key, lease)
	if !ok || b.names[name] == nil {
		return ok
	}
	_, used := b.names[name].slots[slot]
	return !used
}

// removeOrphan deletes an orphan in the background, however long it takes. Its slot is in use until
// then. b.mu is held.
func (b *Backend) removeOrphan(key string, lease int64) {
	name, slot, _ := b.slotOf(key, lease)
	b.nameOf(name).slots[slot] = time.Time{}
	keys := []string{key}
	if b.plain != nil { // both, whichever was found
		keys = []string{b.recordKey(name, "s", slot), b.plain.queueKey(name, lease, slot)}
	}
	b.life.Go(func() {
		deleted := kit.Repeat(b.life.Context(), func(ctx context.Context) error {
			for _, key := range keys {
				if err := b.deleteKey(ctx, name, key); err != nil {
					return err
				}
			}
			return nil
		})
		if deleted {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.freeKey(name, slot, time.Time{})
		}
	})
}

// deleteKey deletes a key that no request has.
func (b *Backend) deleteKey(ctx context.Context, name, key string) error {
	var res *pb.RangeResponse
	err := b.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(key)}, callOptions...)
		return err
	})
	if err != nil || len(res.Kvs) == 0 {
		return err
	}
	req := &pb.TxnRequest{Compare: []*pb.Compare{is(key, res.Kvs[0].ModRevision)}, Success: []*pb.RequestOp{deleteOp(key)}}
	_, _, err = b.txn(ctx, name, false, req, func(error) {})
	return err
}
