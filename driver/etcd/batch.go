package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/internal/alarm"
)

const (
	inFlight    = 2                // calls under way at a time; further ones are batched
	maxInFlight = 16               // the limit while answers are slow
	slowAnswer  = time.Millisecond // an answer that takes longer is slow
	// the greatest size of a batch: a server allows 128 operations (max-txn-ops), counting both
	// levels, and 1.5 MiB (max-request-bytes), of which such a batch takes a fifth with the longest
	// names
	maxBatch = 64
)

// errNotSent: the caller stopped waiting before the transaction was sent.
var errNotSent = errors.New("the call was not sent in time: other calls of this client were queued before it")

// errFullBatch: the server had no space for a batch, and executed all of it or nothing. The caller
// sends its transaction again, alone.
var errFullBatch = errors.New("the server's database is full")

// batcher sends transactions. While many are under way, those on different names travel in a batch,
// as parts of one transaction: the server then writes its log once for all of them. Two
// transactions on one name never share a batch, since two keys put at one revision would have no
// order. A single caller never waits for another.
//
// Thousands of transactions on one name may be queued for longer than a call may take. So the time
// of a call begins when it is sent, and the caller of a queued transaction stops waiting only when
// the server has answered no transaction for that long.
type batcher struct {
	kv     pb.KVClient
	ctx    context.Context // ends with Close
	late   func()          // called when a transaction was not answered in time
	alarms alarm.Clock     // end calls that take too long
	line   kit.Line[*txn]

	mu         sync.Mutex
	most       int       // the greatest size of a batch; refusals lower it
	aloneUntil time.Time // nothing is batched until then
	answered   time.Time // when the server last answered
}

// txn is a transaction on its way.
type txn struct {
	name  string
	req   *pb.TxnRequest
	bound time.Duration // for the answer
	came  time.Time
	gone  chan struct{} // closed when its caller must stop waiting, because of the time

	// the batcher's mu guards what follows
	sent time.Time   // zero: it is queued
	left bool        // its caller does not wait any more
	stop func() bool // stops the alarm that calls look

	res *pb.TxnResponse
	rev int64 // the revision of the store after it
	err error
}

func newBatcher(ctx context.Context, kv pb.KVClient, late func()) *batcher {
	c := &batcher{kv: kv, ctx: ctx, late: late, most: maxBatch}
	c.line = kit.Line[*txn]{
		Alone: c.sendAlone, Together: c.sendBatch, Fits: c.fits,
		Key: func(t *txn) string { return t.name },
		Few: inFlight, Most: maxInFlight, Slow: slowAnswer,
	}
	return c
}

func (c *batcher) fits(batch []*txn, _ *txn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(batch) < c.most && !time.Now().Before(c.aloneUntil)
}

// send sends a transaction once, and waits for the answer until the bound. All its keys belong to
// the name. If ctx ends before the transaction is sent, it is never sent. send also returns how
// long the transaction was queued.
//
// An urgent transaction waits for no other, unless very many are under way.
func (c *batcher) send(ctx context.Context, bound time.Duration, name string, urgent bool, req *pb.TxnRequest) (res *pb.TxnResponse, rev int64, wait time.Duration, err error) {
	if c.ctx.Err() != nil {
		return nil, 0, 0, errNotSent
	}
	t := &txn{name: name, req: req, bound: bound, came: time.Now(), gone: make(chan struct{})}
	c.mu.Lock()
	c.lookAfter(t, patience)
	c.mu.Unlock()
	fate := c.line.Do(ctx, t.gone, urgent, t)
	c.mu.Lock()
	t.left = true
	t.stop()
	if !t.sent.IsZero() { // zero: not sent yet, though perhaps about to be
		wait = t.sent.Sub(t.came)
	}
	c.mu.Unlock()
	switch {
	case fate == kit.Unsent:
		return nil, 0, 0, errNotSent
	case fate == kit.Over:
		return t.res, t.rev, wait, t.err
	case ctx.Err() != nil:
		return nil, 0, wait, ctx.Err()
	}
	c.late()
	return nil, 0, wait, noAnswer(bound)
}

// look makes the caller of a transaction stop waiting if its time has passed, and is called again
// later if not. The time has passed when the bound has, counted from when the transaction was sent;
// or, while it is queued, when the server has answered nothing for as long as a call may take.
func (c *batcher) look(t *txn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.left {
		return
	}
	end := t.sent.Add(t.bound)
	if t.sent.IsZero() {
		if end = t.came.Add(patience); c.answered.After(t.came) {
			end = c.answered.Add(patience)
		}
	}
	if wait := time.Until(end); wait > 0 {
		c.lookAfter(t, wait)
		return
	}
	t.left = true
	close(t.gone)
}

// lookAfter calls look after d. c.mu is held.
func (c *batcher) lookAfter(t *txn, d time.Duration) {
	t.stop = c.alarms.After(d, func() { c.look(t) })
}

// depart records that a batch is sent, and sets the alarms for its bounds. They are set only now:
// each of thousands of queued transactions has an alarm, which should ring rarely.
func (c *batcher) depart(batch []*txn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, t := range batch {
		if t.sent = now; !t.left {
			t.stop()
			c.lookAfter(t, t.bound)
		}
	}
}

// over records the end of a call.
func (c *batcher) over(err error) {
	if outcomeOf(err) == kit.Answered {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answered = time.Now()
	}
}

func (c *batcher) sendAlone(ctx context.Context, t *txn) bool {
	c.mu.Lock()
	t.sent = time.Now()
	c.mu.Unlock()
	t.err = attempt(ctx, c.ctx, &c.alarms, t.bound, c.late, func(ctx context.Context) error {
		c.execute(ctx, t)
		return t.err
	})
	c.over(t.err)
	return true
}

// sendBatch sends transactions together. If the server refuses the batch, it executed none of it
// (unless it has no space), and each is sent by itself. After Close it sends nothing.
func (c *batcher) sendBatch(batch []*txn) {
	if c.ctx.Err() != nil {
		for _, t := range batch {
			t.err = errNotSent
		}
		return
	}
	c.depart(batch)
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(c.ctx), lastTry)
	defer cancel()
	if len(batch) == 1 {
		c.execute(ctx, batch[0])
		c.over(batch[0].err)
		return
	}
	all := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(batch))}
	for i, t := range batch {
		all.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t.req}}
	}
	res, err := c.kv.Txn(ctx, all, callOptions...)
	c.over(err)
	if isFull(err) {
		c.mu.Lock()
		c.aloneUntil = time.Now().Add(patience) // while the refused ones may be sent again
		c.mu.Unlock()
		err = errFullBatch
	}
	if err != nil && outcomeOf(err) == kit.Answered {
		var wg sync.WaitGroup
		for _, t := range batch {
			wg.Go(func() { c.execute(ctx, t) })
		}
		wg.Wait()
		alone := slices.ContainsFunc(batch, func(t *txn) bool { return isTooLarge(t.err) })
		if isTooLarge(err) && !alone { // the batch was too large
			c.mu.Lock()
			c.most = max(1, min(c.most, len(batch)/2))
			c.mu.Unlock()
		}
		return
	}
	for i, t := range batch {
		if err == nil {
			t.res, t.rev = res.Responses[i].GetResponseTxn(), res.Header.Revision
		}
		t.err = err
	}
}

func (c *batcher) execute(ctx context.Context, t *txn) {
	t.res, t.err = c.kv.Txn(ctx, t.req, callOptions...)
	t.rev = t.res.GetHeader().GetRevision()
}
