package zookeeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

const (
	// so many transactions of a session are under way before others travel together: a server
	// takes the packets of one connection one after the other
	fewCalls   = 4
	gatherTime = time.Millisecond // how long a transaction waits for others, at most
	// nothing is batched for so long after a batch that was refused: more of the kind may follow
	aloneTime = 10 * time.Millisecond

	maxParts = 32       // of a batch
	maxBytes = 64 << 10 // of a batch: a server takes jute.maxbuffer, 1 MB if it is not set
)

// batcher sends the transactions of a session. While many are under way, those on different names
// travel in a batch, as parts of one transaction. Those on one name never do: what one transaction
// creates has one zxid, and so the holds would have one token.
//
// A batch is executed whole or not at all. If one part is refused the others are sent again, each
// by itself.
type batcher struct {
	// send executes a transaction, and gives done what the server answers. If it returns an error
	// nothing was sent.
	send func(done func([]zk.MultiResponse, error), ops ...any) error
	// sendAlone executes a transaction for a caller that waits, as session.execute does
	sendAlone func(ctx context.Context, late func([]zk.MultiResponse, error), ops ...any) ([]zk.MultiResponse, error)

	maxBytes int // of a batch

	mu         sync.Mutex
	calls      int     // under way
	parts      []*part // of the batch that is gathered
	names      map[string]bool
	bytes      int
	timer      *time.Timer // ends the gathering
	aloneUntil time.Time
}

// part is a transaction that travels with others.
type part struct {
	ops    []any
	late   func([]zk.MultiResponse, error) // is given the result if the caller has left; may be nil
	result chan outcome                    // is given it else

	// guarded by the batcher's mu
	sent, left, over bool
}

// outcome is what the server says of a transaction.
type outcome struct {
	res []zk.MultiResponse
	err error
}

// execute is [conn.Session.Multi] for operations on one name, which may travel with those on
// others, unless they are urgent. A single delete is sent as such.
func (s *session) execute(ctx context.Context, name string, urgent bool, late func([]zk.MultiResponse, error), ops ...any) ([]zk.MultiResponse, error) {
	var p *part
	if s.own != nil { // the buffers of a user's connection are the user's
		p = s.writes.gather(name, urgent, late, ops)
	}
	if p != nil {
		return s.await(ctx, p)
	}
	if s.own != nil {
		defer s.writes.answered()
	}
	return s.writes.sendAlone(ctx, late, ops...)
}

// executeAlone is execute for what travels alone.
func (s *session) executeAlone(ctx context.Context, late func([]zk.MultiResponse, error), ops ...any) ([]zk.MultiResponse, error) {
	if d, is := ops[0].(*zk.DeleteRequest); is && len(ops) == 1 {
		return nil, s.Delete(ctx, d.Path, d.Version)
	}
	return s.Multi(ctx, late, ops...)
}

// await returns the result of a part, or leaves it.
func (s *session) await(ctx context.Context, p *part) ([]zk.MultiResponse, error) {
	var err error
	select {
	case o := <-p.result:
		return o.res, o.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.Ended():
		err = conn.ErrEnded
	case <-s.b.life.Closed():
		err = driver.ErrClosed
	}
	if sent, over := s.writes.leave(p); over {
		o := <-p.result
		return o.res, o.err
	} else if !sent {
		err = &kit.NotSent{Err: err}
	}
	return nil, err
}

// gather puts a transaction into the next batch. If it returns nil the caller sends it alone, and
// calls answered when that is over. One that is urgent waits for nobody.
func (c *batcher) gather(name string, urgent bool, late func([]zk.MultiResponse, error), ops []any) *part {
	bytes := sizeOf(ops)
	c.mu.Lock()
	defer c.mu.Unlock()
	if urgent || c.calls < fewCalls || c.names[name] || bytes > c.maxBytes/2 || time.Now().Before(c.aloneUntil) {
		c.calls++
		return nil
	}
	if len(c.parts) >= maxParts || c.bytes+bytes > c.maxBytes {
		c.flush()
	}
	p := &part{ops: ops, late: late, result: make(chan outcome, 1)}
	if c.names == nil {
		c.names = map[string]bool{}
	}
	c.parts, c.bytes, c.names[name] = append(c.parts, p), c.bytes+bytes, true
	if len(c.parts) == 1 {
		c.timer = time.AfterFunc(gatherTime, c.gathered)
	}
	return p
}

// sizeOf is about how many bytes operations take on the wire.
func sizeOf(ops []any) (n int) {
	for _, op := range ops {
		n += 64
		switch op := op.(type) {
		case *zk.CreateRequest:
			n += len(op.Path) + len(op.Data)
			for _, a := range op.Acl {
				n += 16 + len(a.Scheme) + len(a.ID)
			}
		case *zk.SetDataRequest:
			n += len(op.Path) + len(op.Data)
		case *zk.DeleteRequest:
			n += len(op.Path)
		case *zk.CheckVersionRequest:
			n += len(op.Path)
		}
	}
	return n
}

// leave records that the caller of a part goes away. If the part is over it has a result.
func (c *batcher) leave(p *part) (sent, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.left = true
	return p.sent, p.over
}

// answered ends a call. When few are left what was gathered meanwhile is sent.
func (c *batcher) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls--; c.calls < fewCalls {
		c.flush()
	}
}

// gathered sends what has waited for long enough.
func (c *batcher) gathered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
}

// flush sends what was gathered. c.mu is held.
func (c *batcher) flush() {
	if len(c.parts) == 0 {
		return
	}
	c.timer.Stop()
	var batch []*part
	for _, p := range c.parts {
		if !p.left {
			p.sent = true
			batch = append(batch, p)
		}
	}
	c.parts, c.bytes = nil, 0
	clear(c.names)
	if len(batch) > 0 {
		c.calls++
		go c.run(batch)
	}
}

// run sends parts as one transaction.
func (c *batcher) run(batch []*part) {
	var ops []any
	for _, p := range batch {
		ops = append(ops, p.ops...)
	}
	done := func(res []zk.MultiResponse, err error) {
		c.settle(batch, res, err)
		c.answered()
	}
	if err := c.send(done, ops...); err != nil {
		done(nil, err)
	}
}

// settle gives each part its result. If the server refused one of several parts the others are sent
// again.
func (c *batcher) settle(batch []*part, res []zk.MultiResponse, err error) {
	again := len(batch) > 1 && conn.Refused(err) && !kit.WasNotSent(err) && !errors.Is(err, conn.ErrAnswer)
	if again {
		c.mu.Lock()
		c.aloneUntil = time.Now().Add(aloneTime)
		c.mu.Unlock()
	}
	for _, p := range batch {
		var own []zk.MultiResponse
		if len(res) >= len(p.ops) {
			own, res = res[:len(p.ops)], res[len(p.ops):]
		}
		if !again {
			c.finish(p, outcome{own, err})
			continue
		}
		// the operations before the one that was refused have no error, those after it have one too
		if reason := firstError(own); reason != nil {
			c.finish(p, outcome{own, reason})
			res = nil
			continue
		}
		c.mu.Lock()
		c.calls++
		c.mu.Unlock()
		go c.run([]*part{p})
	}
}

func firstError(res []zk.MultiResponse) error {
	for _, r := range res {
		if r.Error != nil {
			return r.Error
		}
	}
	return nil
}

// finish gives a part its result.
func (c *batcher) finish(p *part, o outcome) {
	c.mu.Lock()
	left := p.left
	p.over = true
	c.mu.Unlock()
	if !left {
		p.result <- o
	} else if p.late != nil {
		p.late(o.res, o.err)
	}
}
