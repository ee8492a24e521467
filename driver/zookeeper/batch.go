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
	// with this many transactions of a session under way, others are sent together: a server
	// processes the packets of one connection one after the other
	fewCalls   = 4
	mostCalls  = 64               // under way, beside urgent ones
	gatherTime = time.Millisecond // how long a transaction waits for others while fewer are
	// how long nothing is batched after a refused batch: more refusals may follow
	aloneTime = 10 * time.Millisecond

	maxParts = 32       // of a batch
	maxBytes = 64 << 10 // of a batch: a server accepts jute.maxbuffer, 1 MB if it is not set
)

// batcher sends the transactions of a session. While many are under way, those on different names
// are sent in a batch, as parts of one transaction. Those on one name never are: everything that
// one transaction creates has one zxid, so the holds would have one token.
//
// A batch is executed whole or not at all. If one part is refused the others are sent again, each
// by itself.
type batcher struct {
	// send executes a transaction. It returns when the server has answered or the connection ended.
	send     func(ops ...any) ([]zk.MultiResponse, error)
	maxBytes int // of a batch
	line     kit.Line[*part]

	mu         sync.Mutex
	aloneUntil time.Time
}

// part is a transaction on its way.
type part struct {
	name  string
	ops   []any
	bytes int
	late  func([]zk.MultiResponse, error) // receives the result if the caller has left; may be nil

	res []zk.MultiResponse
	err error
}

// newBatcher returns a batcher. alone executes a transaction for a caller that waits, as
// session.executeAlone does.
func newBatcher(maxBytes int, send func(...any) ([]zk.MultiResponse, error), alone func(context.Context, func([]zk.MultiResponse, error), ...any) ([]zk.MultiResponse, error)) *batcher {
	c := &batcher{send: send, maxBytes: maxBytes}
	c.line = kit.Line[*part]{
		Alone: func(ctx context.Context, p *part) bool {
			p.res, p.err = alone(ctx, p.late, p.ops...)
			return true
		},
		Together: c.sendBatch,
		Late: func(p *part) {
			if p.late != nil {
				p.late(p.res, p.err)
			}
		},
		Key: func(p *part) string { return p.name }, Fits: c.fits,
		Few: fewCalls, Most: mostCalls, Slow: gatherTime,
	}
	return c
}

func (c *batcher) fits(batch []*part, next *part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes := next.bytes
	for _, p := range batch {
		bytes += p.bytes
	}
	return len(batch) < maxParts && bytes <= c.maxBytes && !time.Now().Before(c.aloneUntil)
}

// execute is [conn.Session.Multi] for operations on one name, which may be sent together with those
// on others. A single delete that is sent alone is sent as such.
func (s *session) execute(ctx context.Context, name string, urgent bool, late func([]zk.MultiResponse, error), ops ...any) ([]zk.MultiResponse, error) {
	if s.own == nil { // the buffers of a user's connection are the user's
		return s.executeAlone(ctx, late, ops...)
	}
	p := &part{name: name, ops: ops, bytes: sizeOf(ops), late: late}
	fate := s.writes.line.Do(ctx, s.over, urgent, p)
	if fate == kit.Over {
		return p.res, p.err
	}
	err := driver.ErrClosed
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case s.Over():
		err = conn.ErrEnded
	}
	if fate == kit.Unsent {
		err = &kit.NotSent{Err: err}
	}
	return nil, err
}

// executeAlone is execute for operations that are sent alone.
func (s *session) executeAlone(ctx context.Context, late func([]zk.MultiResponse, error), ops ...any) ([]zk.MultiResponse, error) {
	if d, is := ops[0].(*zk.DeleteRequest); is && len(ops) == 1 {
		return nil, s.Delete(ctx, d.Path, d.Version)
	}
	return s.Multi(ctx, late, ops...)
}

// sizeOf returns about how many bytes operations take on the wire.
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

// sendBatch sends parts as one transaction, and gives each its result. If the server refused one of
// several the others are sent again.
func (c *batcher) sendBatch(batch []*part) {
	var ops []any
	for _, p := range batch {
		ops = append(ops, p.ops...)
	}
	res, err := c.send(ops...)
	again := len(batch) > 1 && conn.Refused(err) && !kit.WasNotSent(err) && !errors.Is(err, conn.ErrAnswer)
	if again {
		c.mu.Lock()
		c.aloneUntil = time.Now().Add(aloneTime)
		c.mu.Unlock()
	}
	var wg sync.WaitGroup
	for _, p := range batch {
		p.res, p.err = nil, err
		if len(res) >= len(p.ops) {
			p.res, res = res[:len(p.ops)], res[len(p.ops):]
		}
		if !again {
			continue
		}
		// operations before the refused one have no error, those after it have one too
		if reason := firstError(p.res); reason != nil {
			p.err, res = reason, nil
			continue
		}
		wg.Go(func() { p.res, p.err = c.send(p.ops...) })
	}
	wg.Wait()
}

func firstError(res []zk.MultiResponse) error {
	for _, r := range res {
		if r.Error != nil {
			return r.Error
		}
	}
	return nil
}
