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
	// callTimeout is the time that a statement has.
	callTimeout = 3 * time.Second
	// patience is the time for which a call sends statements again that are not answered.
	patience = 10 * time.Second
)

// errLeft ends a task that no call waits for any more.
var errLeft = errors.New("abandoned")

// task is the work of a call at the server: one statement after the other, each of which is sent
// until it is answered.
type task struct {
	b        *Backend
	urgent   bool // it lets other requests go on
	free     bool // the limiter does not count it
	many     bool // its statements lock rows of several names
	split    bool // it ends if another transaction is in the way, since it can be split
	timeout  time.Duration
	begun    time.Time
	patience time.Duration // how long statements are sent again, since the task began
	// stands: it is for a request that stands in the queue. While the server answers, and only
	// refuses, it ends with its context.
	stands bool
	left   atomic.Bool // no call waits for it any more: it sends no other statement
	// doubt is how many copies of statements that make a request may be under way, or were executed
	// without an answer.
	doubt   atomic.Int32
	made    atomic.Bool           // such a statement was sent
	copies  int                   // of statements that were not answered
	failure atomic.Pointer[error] // why the last statement was not answered
	over    chan struct{}         // closed when the task has ended, even if it was left
}

func (b *Backend) newTask(urgent bool) *task {
	return &task{b: b, urgent: urgent, timeout: callTimeout, begun: time.Now(), patience: patience, over: make(chan struct{})}
}

// run runs the task, and returns when it is done, when ctx ends, or when closed is closed. In the
// last two cases the statement under way goes on alone, and the result of do is not used.
func run[V any](ctx context.Context, t *task, closed <-chan struct{}, do func() (V, error)) (v V, err error) {
	type result struct {
		v   V
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := do()
		done <- result{v, err}
		close(t.over)
	}()
	select {
	case r := <-done:
		return r.v, explain(r.err)
	case <-ctx.Done():
		t.left.Store(true)
		return v, kit.Ended(ctx, t.why())
	case <-closed:
		t.left.Store(true)
		return v, driver.ErrClosed
	}
}

// why is the reason why there is no answer yet, if it is known.
func (t *task) why() error {
	p := t.b.pool
	if err := p.busy(); err != nil {
		return err
	}
	for _, failure := range []*error{t.failure.Load(), p.failure.Load()} {
		if failure != nil {
			return *failure
		}
	}
	return nil
}

// send sends a statement until it is answered, the task is left, or its patience has ended.
func (t *task) send(stmt string) (answer, error) { return t.sendUntil(stmt, false) }

// find is send for a SELECT that returns that many rows, unless something is gone. A statement that
// a KILL QUERY cuts short may return fewer without an error: then it is sent once more.
func (t *task) find(stmt string, rows int) (a answer, err error) {
	for range 2 {
		if a, err = t.send(stmt); err != nil || len(a.rows) >= rows {
			break
		}
	}
	return a, err
}

// make is send for a statement that may make a request.
func (t *task) make(stmt string) (answer, error) { return t.sendUntil(stmt, true) }

func (t *task) sendUntil(stmt string, makes bool) (answer, error) {
	p := t.b.pool
	var first time.Time // when the first copy was answered, or its time was over
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		exit := func() {}
		if !t.free {
			p.enter(t.urgent)
			exit = p.limiter.Exit
		}
		if makes { // before left is read: code that leaves the task sets left before it reads this
			t.made.Store(true)
			t.doubt.Add(1)
		}
		if t.left.Load() {
			exit()
			if makes {
				t.doubt.Add(-1)
			}
			return answer{}, errLeft
		}
		a, err := p.call(context.Background(), t.timeout, stmt, t.many)
		exit()
		outcome := outcomeOf(err, p.reached())
		if makes && outcome != kit.Unknown {
			t.doubt.Add(-1)
		}
		if outcome == kit.Answered {
			return a, err
		}
		t.failure.Store(&err)
		if outcome == kit.Unknown {
			t.copies++
		}
		if first.IsZero() {
			first = time.Now()
		}
		since := t.begun
		if kindOf(err, true) == collided {
			// the server answers: the time in our own queue does not count
			since, wait = first, min(wait, 16*time.Millisecond)
			if t.split {
				return a, err
			}
		}
		if time.Since(since) >= t.patience && !(t.stands && refused(err)) {
			return a, err
		}
		time.Sleep(kit.Jitter(wait, wait/2))
	}
}

// call sends a statement once, if the tables are this driver's.
func (p *pool) call(ctx context.Context, timeout time.Duration, stmt string, many bool) (answer, error) {
	if err := p.checkSchema(ctx); err != nil {
		return answer{}, err
	}
	if most := p.packet.Load(); most > 0 && int64(len(stmt)) >= most {
		return answer{}, errPacket
	}
	a, err := p.ask(ctx, timeout, stmt, many)
	switch {
	case lacksSchema(err): // the tables were changed since
		p.checked.Store(false)
		err = cmp.Or(p.checkSchema(ctx), err)
	case tooLarge(err): // the server's bound was lowered, or the pool's DSN has one
		p.packet.Store(max(leastPacket, int64(len(stmt))/2))
	case errors.Is(err, mysql.ErrInvalidConn) && len(stmt) > leastPacket:
		p.checked.Store(false) // a server whose bound was lowered may just close the connection
	}
	return a, err
}
