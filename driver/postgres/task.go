package postgres

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// callTimeout is the time that an exchange has.
	callTimeout = 3 * time.Second
	// patience is the time for which a call sends exchanges again that are not answered.
	patience = 10 * time.Second
)

// errLeft ends a task that no call waits for any more.
var errLeft = errors.New("abandoned")

// task is the work of a call at the server: one exchange after the other, each of which is sent
// until it is answered.
type task struct {
	p        *pool
	timeout  time.Duration
	begun    time.Time
	patience time.Duration // how long exchanges are sent again, since the task began
	// stands: it is for a request that stands in the queue. While the server answers, and only
	// refuses, it ends with its context.
	stands bool
	left   atomic.Bool // no call waits for it any more: it sends nothing else
	// doubt is how many copies of exchanges that make a request may be under way, or were executed
	// without an answer.
	doubt   atomic.Int32
	made    atomic.Bool           // such an exchange was sent
	copies  int                   // of exchanges that were not answered
	failure atomic.Pointer[error] // why the last exchange was not answered
	over    chan struct{}         // closed when the task has ended, even if it was left
}

func (b *Backend) newTask() *task {
	return &task{p: b.pool, timeout: callTimeout, begun: time.Now(), patience: patience, over: make(chan struct{})}
}

// run runs the task, and returns when it is done, when ctx ends, or when closed is closed. In the
// last two cases the exchange under way goes on alone, and the result of do is not used.
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
	if err := t.p.busy(); err != nil {
		return err
	}
	for _, failure := range []*error{t.failure.Load(), t.p.failure.Load()} {
		if failure != nil {
			return *failure
		}
	}
	return nil
}

// send sends statements until they are answered, the task is left, or its patience has ended.
func (t *task) send(ops ...*op) (sent time.Time, err error) {
	err = t.try(false, func() (err error) {
		sent, err = t.p.call(context.Background(), t.timeout, ops...)
		return err
	})
	return sent, err
}

// try calls an exchange until it is answered. makes says that it may make a request.
func (t *task) try(makes bool, exchange func() error) error {
	var first time.Time // when the first copy was answered, or its time was over
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if makes { // before left is read: code that leaves the task sets left before it reads this
			t.made.Store(true)
			t.doubt.Add(1)
		}
		if t.left.Load() {
			if makes {
				t.doubt.Add(-1)
			}
			return errLeft
		}
		err := exchange()
		outcome := outcomeOf(err, t.p.reached())
		if makes && outcome != kit.Unknown {
			t.doubt.Add(-1)
		}
		if outcome == kit.Answered {
			return err
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
		}
		if time.Since(since) >= t.patience && !(t.stands && refused(err)) {
			return err
		}
		time.Sleep(kit.Jitter(wait, wait/2))
	}
}

// call sends statements once, if the server and its tables are fit.
func (p *pool) call(ctx context.Context, timeout time.Duration, ops ...*op) (sent time.Time, err error) {
	if err := p.checkServer(ctx); err != nil {
		return sent, err
	}
	names := p.names.Load()
	for _, o := range ops {
		o.named = names.in(o.sql)
	}
	sent, err = p.exchange(ctx, timeout, ops...)
	if lacksSchema(err) { // the tables were changed since
		p.checked.Store(false)
		err = cmp.Or(p.checkServer(ctx), err)
	}
	return sent, err
}

// reached reports whether the server was reached before, and was fit.
func (p *pool) reached() bool { return p.checked.Load() }
