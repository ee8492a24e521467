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
	// at most so many in one: a server allows 128 operations (max-txn-ops), counting both levels
	batch = 64
)

// errNotSent: whoever asked left before the transaction was sent.
var errNotSent = errors.New("the call was not sent in time: others were before it")

// errTogether: the server had no space for what was sent together, all of which it executed
// nevertheless, or nothing. Who asked does it again, alone.
var errTogether = errors.New("the server's database is full")

// combiner sends transactions. While many are under way, those on different names travel together,
// as parts of one: the server then writes its log once for all of them. A single caller never waits
// for another.
//
// Those on one name go one after the other, in the order in which they came. Thousands may stand in
// line there, longer than a call may take: so the time of a call begins when it is sent, and who
// stands in line leaves only when the server has answered nobody for that long.
type combiner struct {
	kv   pb.KVClient
	ctx  context.Context // ends with Close
	late func()          // is told of transactions that were not answered in time; nil: nobody

	mu    sync.Mutex
	busy  int
	lines map[string][]*part // by name
	order []string           // the names that have a line, each once
	// opens another lane for those that have waited for long; nil: none of them does
	timer    *time.Timer
	alone    time.Time // nothing travels together until then
	answered time.Time // when the server last answered
}

// part is a transaction that waits to be sent or answered.
type part struct {
	name string
	req  *pb.TxnRequest
	sent chan struct{}
	left bool // the combiner's mu guards it
	done chan struct{}
	res  *pb.TxnResponse
	rev  int64 // the revision of the store after it
	err  error
}

// txn sends a transaction once, and waits for the answer for so long. All its keys belong to the
// name. A transaction that was not sent when ctx ended never is. It tells how long it stood in
// line.
func (c *combiner) txn(ctx context.Context, try time.Duration, name string, req *pb.TxnRequest) (res *pb.TxnResponse, rev int64, line time.Duration, err error) {
	c.mu.Lock()
	if c.busy < lanes {
		c.busy++
		c.mu.Unlock()
		err := attempt(ctx, c.ctx, try, c.tardy, func(ctx context.Context) (err error) {
			res, err = c.kv.Txn(ctx, req, callOptions...)
			return err
		})
		c.next(err)
		return res, res.GetHeader().GetRevision(), 0, err
	}
	came := time.Now()
	p := &part{name: name, req: req, sent: make(chan struct{}), done: make(chan struct{})}
	if c.lines == nil {
		c.lines = map[string][]*part{}
	}
	if len(c.lines[name]) == 0 {
		c.order = append(c.order, name)
	}
	c.lines[name] = append(c.lines[name], p)
	if c.timer == nil && c.busy < more {
		c.timer = time.AfterFunc(long, c.another)
	}
	c.mu.Unlock()
	if err := c.stand(ctx, p, came); err != nil {
		return nil, 0, 0, err
	}
	line = time.Since(came)
	over := time.NewTimer(try)
	defer over.Stop()
	select {
	case <-p.done:
		return p.res, p.rev, line, p.err
	case <-over.C:
		c.tardy()
		return nil, 0, line, noAnswer(try)
	case <-ctx.Done():
		return nil, 0, line, ctx.Err()
	case <-c.ctx.Done():
		return nil, 0, line, c.ctx.Err()
	}
}

// stand returns when a part is sent. It leaves the line if ctx ends, or nothing was answered for as
// long as a call may take.
func (c *combiner) stand(ctx context.Context, p *part, came time.Time) error {
	for wait := patience; ; {
		timer := time.NewTimer(wait)
		select {
		case <-p.sent:
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
		case <-p.sent:
			c.mu.Unlock()
			return nil
		default:
		}
		if ctx.Err() != nil || c.ctx.Err() != nil || wait <= 0 {
			p.left = true
			c.mu.Unlock()
			return errNotSent
		}
		c.mu.Unlock()
	}
}

func (c *combiner) tardy() {
	if c.late != nil {
		c.late()
	}
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
	if len(c.order) > 0 && c.busy < more {
		c.timer = time.AfterFunc(long, c.another)
	}
}

func (c *combiner) carry(ps []*part) { c.next(c.send(ps)) }

// next gives the lane of a transaction that ended to those that wait.
func (c *combiner) next(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if judge(err) == answered {
		c.answered = time.Now()
	}
	if ps := c.take(); len(ps) > 0 {
		go c.carry(ps)
	} else {
		c.busy--
	}
}

// take returns what is sent next: one transaction of each name, since two keys put at one revision
// would have no order. c.mu is held.
func (c *combiner) take() (ps []*part) {
	most := batch
	if time.Now().Before(c.alone) {
		most = 1
	}
	var again []string // names that have more
	for len(c.order) > 0 && len(ps) < most {
		name := c.order[0]
		c.order = c.order[1:]
		line := c.lines[name]
		for len(line) > 0 && line[0].left {
			line = line[1:]
		}
		if len(line) > 0 {
			ps = append(ps, line[0])
			close(line[0].sent)
			line = line[1:]
		}
		if len(line) == 0 {
			delete(c.lines, name)
			continue
		}
		c.lines[name] = line
		again = append(again, name)
	}
	c.order = append(c.order, again...)
	return ps
}

// send sends parts together, or each by itself if the server refuses one of them: it then executed
// none, unless it has no space. It returns an error of the call itself.
func (c *combiner) send(ps []*part) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(c.ctx), lastTry)
	defer cancel()
	if len(ps) == 1 {
		return c.single(ctx, ps[0])
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
		return nil
	}
	for i, p := range ps {
		if err == nil {
			p.res, p.rev = res.Responses[i].GetResponseTxn(), res.Header.Revision
		}
		p.err = err
		close(p.done)
	}
	return err
}

func (c *combiner) single(ctx context.Context, p *part) error {
	p.res, p.err = c.kv.Txn(ctx, p.req, callOptions...)
	p.rev = p.res.GetHeader().GetRevision()
	close(p.done)
	return p.err
}
