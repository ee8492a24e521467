package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Inspect implements [driver.Backend]. The time left of a lease comes from the server, which
// reports whole seconds: Left is the upper bound. Ages are measured by the clocks of the clients
// that wrote the keys.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Queue{}, err
	}
	if err := b.admitsName(name); err != nil {
		return driver.Queue{}, err
	}
	q, _, err := b.readQueue(ctx, name)
	if err != nil {
		return driver.Queue{}, err
	}
	left, err := b.remaining(ctx, q)
	if err != nil {
		return driver.Queue{}, err
	}
	granted := q.rule.Granted()
	for i, r := range append(q.arrivals[:len(q.arrivals):len(q.arrivals)], q.joins...) {
		r.Left, r.Age = left[r.lease], r.age()
		if i >= granted && !r.Join() {
			r.Token = 0
		}
	}
	return b.tokens.Shown(q.rule), nil
}

// remaining queries how much time the leases of a queue have left.
func (b *Backend) remaining(ctx context.Context, q *queue) (map[int64]time.Duration, error) {
	left := map[int64]time.Duration{}
	for _, r := range q.records {
		left[r.lease] = 0
	}
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		failed error
	)
	turns := make(chan struct{}, 8)
	for _, id := range slices.Collect(maps.Keys(left)) {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			var res *pb.LeaseTimeToLiveResponse
			err := b.repeat(ctx, func(ctx context.Context) (err error) {
				res, err = b.lessor.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id}, callOptions...)
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else if res.TTL >= 0 {
				left[id] = time.Duration(min(res.TTL+1, res.GrantedTTL)) * time.Second
			}
		})
	}
	wg.Wait()
	return left, failed
}

// listPage is the greatest number of keys in an answer to List: below 20 MB, and far below that
// with usual names. Each page costs the server a walk over all keys behind it.
const listPage = 10 * page

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) ([]string, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	from, nameAt := b.base, func(kv *mvccpb.KeyValue) (string, bool) {
		name, ok := b.keyName(string(kv.Key))
		return name, ok && !decode(name, kv).tombstone
	}
	if b.plain != nil {
		if from = b.plain.before; from == "" {
			return nil, fmt.Errorf("%w: all keys of the cluster may be locks, since the key %s has nothing before {name}; open dlock with a key such as /locks/{name}",
				driver.ErrUnsupported, b.plain)
		}
		nameAt = func(kv *mvccpb.KeyValue) (string, bool) {
			name, _, ok := b.plain.split(string(kv.Key))
			return name, ok
		}
	}
	var names []string
	err := b.pages(ctx, from, 0, listPage, func(res *pb.RangeResponse) int64 {
		for _, kv := range res.Kvs {
			if name, ok := nameAt(kv); ok && (len(names) == 0 || names[len(names)-1] != name) {
				names = append(names, name)
			}
		}
		return 0
	})
	return names, err
}

// maxBroken is the greatest number of requests that one transaction breaks: with a notice for each,
// and a comparison, it is within the bounds of a batch.
const maxBroken = maxBatch/2 - 1

// Break implements [driver.Breaker]. It puts the keys of the hold again, marked as broken, under a
// lease that is not kept alive: so their owner finds them missing under its own lease. A hold of
// very many requests takes several transactions: it has ended when Break returns. Without force the
// broken keys stand for longer than their owner trusts the hold.
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	if err := b.admitsName(name); err != nil {
		return err
	}
	most := maxBroken
	sent := false      // a transaction ended a part of the hold, or its outcome is unknown
	var under []*lease // the leases of the broken keys
	for {
		q, rev, err := b.readQueue(ctx, name)
		if err != nil {
			return err
		}
		hold := q.hold(b.tokens.Sub(t))
		if len(hold) == 0 {
			if sent && force {
				return nil // a copy of the transaction ended the hold
			}
			return driver.ErrNotHeld
		}
		if i := slices.IndexFunc(hold, func(r *record) bool { return r.foreign }); i >= 0 {
			return errForeign(hold[i])
		}
		if hold[0].Foreign {
			return errPeer(hold[0], t)
		}
		if !force {
			hold = slices.DeleteFunc(hold, func(r *record) bool { return r.Broken })
		}
		if len(hold) == 0 {
			return b.outlive(ctx, under)
		}
		part := hold[:min(len(hold), most)]
		req, l, err := b.breaking(ctx, part, force)
		if err != nil {
			return err
		}
		lost := false
		// no join was put since
		req.Compare = append(req.Compare, unchanged(b.prefixOf(name)+"j", rev))
		out, _, err := b.txn(ctx, name, false, req, func(err error) { lost = lost || outcomeOf(err) == kit.Unknown })
		if isTooLarge(err) && most > 1 {
			most = max(1, len(part)/2)
			continue
		}
		if err != nil {
			return err
		}
		if out.Succeeded || lost {
			sent, under = true, append(under, l)
		}
		switch {
		case !out.Succeeded || len(part) < len(hold):
		case force:
			return nil
		default:
			return b.outlive(ctx, under)
		}
	}
}

// breaking returns the transaction that ends a part of a hold, if the part is still as it was read,
// and the lease for the keys that it puts. The clients that hold get notices.
func (b *Backend) breaking(ctx context.Context, part []*record, force bool) (*pb.TxnRequest, *lease, error) {
	ttl := time.Duration(0)
	for _, r := range part {
		ttl = max(ttl, r.TTL)
	}
	l, err := b.leases.grant(ctx, ttl)
	if err != nil {
		return nil, nil, err
	}
	req := &pb.TxnRequest{}
	notices := map[string][]string{}
	for _, r := range part {
		broken := *r
		broken.Broken, broken.tombstone = true, force
		req.Compare = append(req.Compare, is(r.key, r.mod))
		req.Success = append(req.Success, putOp(r.key, broken.encode(), l.id))
		if r.queueKey != "" {
			inQueue := putOp(r.queueKey, r.Label, l.id)
			if force {
				inQueue = deleteOp(r.queueKey)
			}
			req.Compare, req.Success = append(req.Compare, is(r.queueKey, r.queueMod)), append(req.Success, inQueue)
		}
		if to := b.noticesOf(r.key); to != "" {
			notices[to] = append(notices[to], r.ID.String())
		}
	}
	for to, ids := range notices {
		req.Success = append(req.Success, putOp(to+strconv.FormatInt(l.id, 16), strings.Join(ids, " "), l.id))
	}
	return req, l, nil
}

// outlive makes sure that broken keys stand for longer than their owner trusts the hold. The owner
// may have renewed until the transaction was executed, and trusts a renewal for a TTL less a
// margin: TTL/20, or a second if that is less (see package dlock). The break's lease counts from
// its grant. If at most a fifth of the margin has passed since the grant was sent, the lease has
// enough time left, and the rest of the margin covers clocks of different rates. Otherwise the
// lease gets its full TTL again.
func (b *Backend) outlive(ctx context.Context, ls []*lease) error {
	for _, l := range ls {
		if since, _ := l.trust(); time.Since(since) <= min(l.ttl/100, 200*time.Millisecond) {
			continue
		}
		// ErrLost: nothing is left of the hold
		if err := b.leases.refresh(ctx, l); err != nil && !errors.Is(err, driver.ErrLost) {
			return err
		}
	}
	return nil
}
