package mysql

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// callTimeout is the time that a statement has. The server itself waits at most 2 s for a row
	// or a table.
	callTimeout = 3 * time.Second
	// patience is for how long a call is sent while nobody knows what became of it.
	patience = 10 * time.Second
)

// call is a statement that is sent until it is answered. Every procedure may be called twice.
type call struct {
	stmt     string
	simple   *simple       // the first copy may travel together with others; nil: it may not
	urgent   bool          // it lets others go on
	timeout  time.Duration // of one copy
	patience time.Duration
	// stands: it is for a request that waits in the queue, as the server said. While the server
	// answers, and only refuses, that ends with its context.
	stands bool
	begun  time.Time
	left   atomic.Bool // nobody waits for it any more: it is not sent again
	// doubt is how many copies may be under way, or were executed without an answer that somebody
	// read.
	doubt   atomic.Int32
	failure atomic.Pointer[error] // why the last copy was not answered

	// The rest is set once done is closed.
	answered bool // whoever reads the answer takes the last copy out of doubt
	sent     time.Time
	sets     results
	err      error
	done     chan struct{}
}

func newCall(procedure string, args ...any) *call {
	return &call{
		stmt: statement(procedure, args...), timeout: callTimeout, patience: patience,
		begun: time.Now(), done: make(chan struct{}),
	}
}

var errNotSent = errors.New("not sent")

// run sends the call until it is answered, nobody waits for it, or patience is over. If limited is
// set the call is for one name: each copy counts for the limiter, and for the pace.
func (c *call) run(p *pool, limited bool) {
	defer close(c.done)
	c.err = errNotSent
	send := p.alone
	if c.simple != nil {
		send = p.joined
	}
	var first time.Time // when the first copy was answered, or given up
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		sets, sent, left, err := send(c, limited)
		if send = p.alone; left {
			return
		}
		if err == errAlone {
			continue
		}
		c.sets, c.sent, c.err = sets, sent, err
		outcome := outcomeOf(err, p.reached())
		if c.answered = outcome == kit.Answered; c.answered {
			return
		}
		c.failure.Store(&err)
		if outcome == kit.NotDone {
			c.doubt.Add(-1)
		}
		if first.IsZero() {
			first = time.Now()
		}
		since := c.begun
		if kindOf(err, true) == collided {
			// the server answers: the time in our own queue does not count
			since, wait = first, min(wait, 16*time.Millisecond)
		}
		if time.Since(since) > c.patience && !(c.stands && refused(err)) {
			return
		}
		time.Sleep(wait)
	}
}

// alone sends one copy. left reports that nobody waits for it any more, and that it was not sent.
func (p *pool) alone(c *call, limited bool) (sets results, sent time.Time, left bool, err error) {
	if limited {
		p.limiter.enter(p.db, c.urgent)
		defer p.limiter.exit()
	}
	if !c.copied() {
		return nil, sent, true, nil
	}
	sets, sent, err = p.call(c.timeout, c.stmt)
	if limited && err == nil {
		p.calls.answered(sent)
	}
	return sets, sent, false, err
}

// copied records that a copy is about to be sent, or reports false if nobody waits for it any more.
// Doubt is written before left is read. Whoever leaves writes left before it reads doubt. So one of
// the two sees the other.
func (c *call) copied() bool {
	c.doubt.Add(1)
	if c.left.Load() {
		c.doubt.Add(-1)
		return false
	}
	return true
}

// call sends a statement once, if the schema is this driver's.
func (p *pool) call(timeout time.Duration, stmt string) (results, time.Time, error) {
	if err := p.checkSchema(context.Background()); err != nil {
		return nil, time.Time{}, err
	}
	if most := p.packet.Load(); most > 0 && int64(len(stmt)) >= most {
		return nil, time.Time{}, errPacket
	}
	a, err := p.ask(context.Background(), timeout, stmt)
	switch {
	case lacksSchema(err): // it was changed since
		p.checked.Store(false)
		err = cmp.Or(p.checkSchema(context.Background()), err)
	case tooLarge(err): // the server's bound was lowered, or the pool's DSN has one
		p.packet.Store(max(leastPacket, int64(len(stmt))/2))
	case errors.Is(err, mysql.ErrInvalidConn) && len(stmt) > leastPacket:
		p.checked.Store(false) // a server whose bound was lowered may say no more than that
	}
	return a.sets, a.sent, err
}

// wait returns when the call is answered, or at the end of ctx, or when the client is closed. In
// the last two cases nobody waits for the call any more.
func (c *call) wait(ctx context.Context, p *pool, closed <-chan struct{}) error {
	select {
	case <-c.done:
		if c.answered {
			c.doubt.Add(-1)
		}
		return c.err
	case <-ctx.Done():
		c.left.Store(true)
		return kit.Ended(ctx, c.why(p))
	case <-closed:
		c.left.Store(true)
		return driver.ErrClosed
	}
}

// why is the reason why there is no answer yet, as far as it is known.
func (c *call) why(p *pool) error {
	if err := p.busy(); err != nil {
		return err
	}
	for _, failure := range []*error{c.failure.Load(), p.failure.Load()} {
		if failure != nil {
			return *failure
		}
	}
	return nil
}
