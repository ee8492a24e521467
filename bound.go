package dlock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// answerTime is how long a call of this package waits for the backend's answer, whatever its
// context allows: Open, TryLock, a Lock that joins a hold, Inspect, Break, Renew and Unlock. Only a
// Lock that stands in the queue waits for as long as its context.
const answerTime = 10 * time.Second

// timeLimit is a time that this package sets, and the cause of a context that ended with it. It
// does not match the errors of package context, so that it is not taken for the end of the
// caller's.
type timeLimit struct{ d time.Duration }

var noAnswer = &timeLimit{answerTime}

// Error says what a call that ended so has to say.
func (l *timeLimit) Error() string { return fmt.Sprintf("the backend did not answer within %s", l.d) }

// bound is the context of one call. It ends with the caller's; with cause limit when that time is
// over; and with cause ErrClosed when the client is closed. It is made of contexts of package
// context when somebody asks it for its end. A backend that answers at once never does.
type bound struct {
	caller context.Context
	client context.Context // nil: Close does not end it
	limit  *timeLimit      // nil: it has no time
	until  time.Time       // when that is over

	mu    sync.Mutex
	ctx   context.Context // nil until somebody asks
	stop  func()
	ended bool
}

// bounded returns a context that ends with the caller's, and with cause limit when that time is
// over. A nil limit sets no time. The context has to be ended.
func bounded(caller context.Context, limit *timeLimit) *bound {
	b := &bound{caller: caller, limit: limit}
	if limit != nil {
		b.until = time.Now().Add(limit.d)
	}
	return b
}

// end ends the context, if nothing else has.
func (b *bound) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.ctx != nil {
		b.stop()
	}
}

// asked returns the context that tells.
func (b *bound) asked() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx == nil {
		b.make()
	}
	return b.ctx
}

func (b *bound) make() {
	ctx, stop := b.caller, context.CancelFunc(func() {})
	if b.limit != nil {
		ctx, stop = context.WithDeadlineCause(ctx, b.until, b.limit)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	detach := func() bool { return true }
	if b.client != nil {
		detach = context.AfterFunc(b.client, func() { cancel(ErrClosed) })
		if b.client.Err() != nil {
			cancel(ErrClosed) // now: AfterFunc takes a moment
		}
	}
	b.ctx, b.stop = ctx, func() {
		detach()
		cancel(nil)
		stop()
	}
	if b.ended {
		b.stop()
	}
}

// lives reports whether nobody has asked yet, and nothing has ended the context.
func (b *bound) lives() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ctx == nil && !b.ended && b.caller.Err() == nil &&
		(b.client == nil || b.client.Err() == nil) &&
		(b.limit == nil || time.Now().Before(b.until))
}

// Err implements context.Context.
func (b *bound) Err() error {
	if b.lives() {
		return nil
	}
	return b.asked().Err()
}

// Done implements context.Context.
func (b *bound) Done() <-chan struct{} { return b.asked().Done() }

// Deadline implements context.Context.
func (b *bound) Deadline() (time.Time, bool) { return b.asked().Deadline() }

// Value implements context.Context. Package context asks it for the cause, too.
func (b *bound) Value(key any) any { return b.asked().Value(key) }
