package etcd

import (
	"cmp"
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
	inFlight    = 2                // calls under way at a time; what comes beyond them is batched
	maxInFlight = 16               // as many may be when answers take long
	slowAnswer  = time.Millisecond // that is longer than this
	// at most so many in a batch: a server allows 128 operations (max-txn-ops), counting both
	// levels, and 1.5 MiB (max-request-bytes), of which so many take a fifth with the longest names
	maxBatch = 64
)

// errNotSent: the caller left before the transaction was sent.
var errNotSent = errors.New("the call was not sent in time: others were before it")

// errFullBatch: the server had no space for a batch, and executed all of it or nothing. The caller
// sends the transaction again, alone.
var errFullBatch = errors.New("the server's database is full")

// batcher sends transactions. While many are under way, those on different names travel in a batch,
// as parts of one transaction: the server then writes its log once for all of them. A single caller
// never waits for another.
//
// Those on one name are sent one after the other, in the order in which they came. Thousands may be
// queued there for longer than a call may take. So the time of a call begins when it is sent, and a
// caller whose transaction is queued leaves only when the server has answered nobody for that long.
type batcher struct {
	kv   pb.KVClient
	ctx  context.Context // ends with Close
	late func()          // is called when a transaction was not answered in time; may be nil

	alarms alarm.Clock // end what takes too long

	mu     sync.Mutex
	calls  int
	queues map[string][]*queued // by name
	names  []string             // those that have a queue, each once, in the order of their turns
	// begins another call for what is queued for long; nil: nothing is
	timer      *time.Timer
	aloneUntil time.Time // nothing is batched until then
	most       int       // in a batch, as a server with bounds of its own has shown; 0: maxBatch
	answered   time.Time // when the server last answered
}

// queued is a transaction that waits to be sent or answered.
type queued struct {
	name string
	req  *pb.TxnRequest
	sent chan struct{}
	left bool // the batcher's mu guards it
	done chan struct{}
	res  *pb.TxnResponse
	rev  int64 // the revision of the store after it
	err  error
}

// send sends a transaction once, and waits for the answer until the bound. All its keys belong to
// the name. A transaction that was not sent when ctx ended never is. It tells how long it was
// queued.
//
// One that is urgent waits for no other, unless very many are under way.
func (c *batcher) send(ctx context.Context, bound time.Duration, name string, urgent bool, req *pb.TxnRequest) (res *pb.TxnResponse, rev int64, wait time.Duration, err error) {
	c.mu.Lock()
	if c.calls < inFlight || urgent && c.calls < maxInFlight {
		c.calls++
		c.mu.Unlock()
		err := attempt(ctx, c.ctx, &c.alarms, bound, c.notAnswered, func(ctx context.Context) (err error) {
			res, err = c.kv.Txn(ctx, req, callOptions...)
			return err
		})
		c.finish(err)
		return res, res.GetHeader().GetRevision(), 0, err
	}
	came := time.Now()
	q := c.enqueue(name, urgent, req)
	c.mu.Unlock()
	if err := c.awaitSent(ctx, q, came); err != nil {
		return nil, 0, 0, err
	}
	wait = time.Since(came)
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-q.done:
		return q.res, q.rev, wait, q.err
	case <-timer.C:
		c.notAnswered()
		return nil, 0, wait, noAnswer(bound)
	case <-ctx.Done():
		return nil, 0, wait, ctx.Err()
	case <-c.ctx.Done():
		return nil, 0, wait, c.ctx.Err()
	}
}

// enqueue puts a transaction at the end of its name's queue, or at its head. c.mu is held.
func (c *batcher) enqueue(name string, urgent bool, req *pb.TxnRequest) *queued {
	q := &queued{name: name, req: req, sent: make(chan struct{}), done: make(chan struct{})}
	if c.queues == nil {
		c.queues = map[string][]*queued{}
	}
	if len(c.queues[name]) == 0 {
		c.names = append(c.names, name)
	}
	at := len(c.queues[name])
	if urgent {
		at = 0
	}
	c.queues[name] = slices.Insert(c.queues[name], at, q)
	c.hurry()
	return q
}

// crowded reports whether more is queued on the next name than can travel together. c.mu is held.
func (c *batcher) crowded() bool { return len(c.names) > 0 && len(c.queues[c.names[0]]) > 1 }

// hurry has what is queued sent soon, however slow the calls under way are. c.mu is held.
func (c *batcher) hurry() {
	if c.timer == nil && len(c.names) > 0 && c.calls < maxInFlight {
		c.timer = time.AfterFunc(slowAnswer, c.another)
	}
}

// awaitSent returns when a transaction is sent. It leaves the queue if ctx ends, or nothing was
// answered for as long as a call may take.
func (c *batcher) awaitSent(ctx context.Context, q *queued, came time.Time) error {
	for wait := patience; ; {
		timer := time.NewTimer(wait)
		select {
		case <-q.sent:
			timer.Stop()
			return nil
		case <-ctx.Done():
		case <-c.ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		c.mu.Lock()
		last := came
		if c.answered.After(came) {
			last = c.answered
		}
		wait = patience - time.Since(last)
		select {
		case <-q.sent:
			c.mu.Unlock()
			return nil
		default:
		}
		if ctx.Err() != nil || c.ctx.Err() != nil || wait <= 0 {
			q.left = true
			c.mu.Unlock()
			return errNotSent
		}
		c.mu.Unlock()
	}
}

func (c *batcher) notAnswered() {
	if c.late != nil {
		c.late()
	}
}

// another begins one more call for what has been queued for long.
func (c *batcher) another() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	if batch := c.take(); len(batch) > 0 {
		c.calls++
		go c.run(batch)
	}
	c.hurry()
}

func (c *batcher) run(batch []*queued) { c.finish(c.sendBatch(batch)) }

// finish ends a call. What is queued gets its place, unless calls that were slow have made them
// many: then it waits for more that can travel with it.
func (c *batcher) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if outcomeOf(err) == kit.Answered {
		c.answered = time.Now()
	}
	if c.calls--; c.calls >= inFlight && !c.crowded() {
		c.hurry()
		return
	}
	if batch := c.take(); len(batch) > 0 {
		c.calls++
		go c.run(batch)
	}
}

// take returns what is sent next: one transaction of each name, since two keys put at one revision
// would have no order. c.mu is held.
func (c *batcher) take() (batch []*queued) {
	most := cmp.Or(c.most, maxBatch)
	if time.Now().Before(c.aloneUntil) {
		most = 1
	}
	var more []string // names that have more
	for len(c.names) > 0 && len(batch) < most {
		name := c.names[0]
		c.names = c.names[1:]
		queue := c.queues[name]
		for len(queue) > 0 && queue[0].left {
			queue = queue[1:]
		}
		if len(queue) > 0 {
			batch = append(batch, queue[0])
			close(queue[0].sent)
			queue = queue[1:]
		}
		if len(queue) == 0 {
			delete(c.queues, name)
			continue
		}
		c.queues[name] = queue
		more = append(more, name)
	}
	c.names = append(c.names, more...)
	return batch
}

// sendBatch sends transactions together. If the server refuses one of them it executed none, unless
// it has no space; then each is sent by itself. The error is that of the call itself.
func (c *batcher) sendBatch(batch []*queued) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(c.ctx), lastTry)
	defer cancel()
	if len(batch) == 1 {
		return c.sendAlone(ctx, batch[0])
	}
	all := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(batch))}
	for i, q := range batch {
		all.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: q.req}}
	}
	res, err := c.kv.Txn(ctx, all, callOptions...)
	if isFull(err) {
		c.mu.Lock()
		c.aloneUntil = time.Now().Add(patience) // for as long as they are sent again
		c.mu.Unlock()
		err = errFullBatch
	}
	if isTooLarge(err) {
		c.mu.Lock()
		c.most = max(1, min(cmp.Or(c.most, maxBatch), len(batch)/2))
		c.mu.Unlock()
	}
	if err != nil && outcomeOf(err) == kit.Answered {
		var wg sync.WaitGroup
		for _, q := range batch {
			wg.Go(func() { c.sendAlone(ctx, q) })
		}
		wg.Wait()
		return nil
	}
	for i, q := range batch {
		if err == nil {
			q.res, q.rev = res.Responses[i].GetResponseTxn(), res.Header.Revision
		}
		q.err = err
		close(q.done)
	}
	return err
}

func (c *batcher) sendAlone(ctx context.Context, q *queued) error {
	q.res, q.err = c.kv.Txn(ctx, q.req, callOptions...)
	q.rev = q.res.GetHeader().GetRevision()
	close(q.done)
	return q.err
}
