package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	lanes = 2  // transactions under way at a time; what comes beyond them goes together
	more  = 16 // as many are under way when answers take long, as over a long line
	long  = time.Millisecond
	batch = 64 // at most so many in one: a server allows 128 operations (max-txn-ops), counting both levels
)

// errNotSent: whoever asked left before the transaction was sent.
var errNotSent = errors.New("the server is slow: the call was not sent")

// errTogether: the server had no space for what was sent together, all of which it executed nevertheless, or nothing. Who asked does it again, alone.
var errTogether = errors.New("the server's database is full")

// combiner sends transactions. While many are under way, those on different names travel together, as parts of one: the server then writes its log once for
// all of them. A single caller never waits for another.
type combiner struct {
	kv  pb.KVClient
	ctx context.Context // ends with Close

	mu    sync.Mutex
	busy  int
	queue []*part
	timer *time.Timer // opens another lane for those that have waited for long; nil: none of them does
	alone time.Time   // nothing travels together until then
}

// part is a transaction that waits to be sent or answered.
type part struct {
	name string
	req  *pb.TxnRequest
	sent bool // the combiner's mu guards it
	left bool
	done chan struct{}
	res  *pb.TxnResponse
	rev  int64 // the revision of the store after it
	err  error
}

// txn sends a transaction once. All its keys belong to the name. A transaction that was not sent when ctx ended never is.
func (c *combiner) txn(ctx context.Context, name string, req *pb.TxnRequest) (res *pb.TxnResponse, rev int64, err error) {
	c.mu.Lock()
	if c.busy < lanes {
		c.busy++
		c.mu.Unlock()
		res, err := c.kv.Txn(ctx, req, callOptions...)
		c.next()
		return res, res.GetHeader().GetRevision(), err
	}
	p := &part{name: name, req: req, done: make(chan struct{})}
	c.queue = append(c.queue, p)
	if c.timer == nil && c.busy < more {
		c.timer = time.AfterFunc(long, c.another)
	}
	c.mu.Unlock()
	select {
	case <-p.done:
		return p.res, p.rev, p.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.sent {
		p.left = true
		return nil, 0, errNotSent
	}
	return nil, 0, ctx.Err()
}

// another opens a lane for what has waited for long.
func (c *combiner) another() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	if ps := c.take(); len(ps) > 0 {
		c.busy++
		go c.carry(ps)
	}
	if len(c.queue) > 0 && c.busy < more {
		c.timer = time.AfterFunc(long, c.another)
	}
}

func (c *combiner) carry(ps []*part) {
	c.send(ps)
	c.next()
}

// next gives the lane of a transaction that ended to those that wait.
func (c *combiner) next() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ps := c.take(); len(ps) > 0 {
		go c.carry(ps)
	} else {
		c.busy--
	}
}

// take returns what is sent next: one transaction of each name, since two keys put at one revision would have no order. c.mu is held.
func (c *combiner) take() (ps []*part) {
	names, rest, most := map[string]bool{}, c.queue[:0], batch
	if time.Now().Before(c.alone) {
		most = 1
	}
	for _, p := range c.queue {
		switch {
		case p.left:
		case len(ps) == most || names[p.name]:
			rest = append(rest, p)
		default:
			names[p.name], p.sent = true, true
			ps = append(ps, p)
		}
	}
	clear(c.queue[len(rest):])
	c.queue = rest
	return ps
}

// send sends parts together, or each by itself if the server refuses one of them: it then executed none, unless it has no space.
func (c *combiner) send(ps []*part) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(c.ctx), lastTry)
	defer cancel()
	if len(ps) == 1 {
		c.single(ctx, ps[0])
		return
	}
	all := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(ps))}
	for i, p := range ps {
		all.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: p.req}}
	}
	res, err := c.kv.Txn(ctx, all, callOptions...)
	if isFull(err) {
		c.mu.Lock()
		c.alone = time.Now().Add(patience) // as long as they ask again
		c.mu.Unlock()
		err = errTogether
	}
	if err != nil && judge(err) == answered {
		var wg sync.WaitGroup
		for _, p := range ps {
			wg.Go(func() { c.single(ctx, p) })
		}
		wg.Wait()
		return
	}
	for i, p := range ps {
		if err == nil {
			p.res, p.rev = res.Responses[i].GetResponseTxn(), res.Header.Revision
		}
		p.err = err
		close(p.done)
	}
}

func (c *combiner) single(ctx context.Context, p *part) {
	p.res, p.err = c.kv.Txn(ctx, p.req, callOptions...)
	p.rev = p.res.GetHeader().GetRevision()
	close(p.done)
}
