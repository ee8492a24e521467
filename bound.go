package dlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
)

// answerTime is how long a call of this package waits for the backend's answer, whatever its
// context allows: Open, TryLock, a Lock that joins a hold, Inspect, Break, Renew and Unlock. Only a
// Lock that stands in the queue waits as long as its context.
const answerTime = 10 * time.Second

// timeLimit is a time limit that this package sets, and the cause of a context that it ended. It
// does not match the errors of package context, so that it is not mistaken for the end of the
// caller's.
type timeLimit struct{ d time.Duration }

var noAnswer = &timeLimit{answerTime}

// Error is the text of a call that ended in this way.
func (l *timeLimit) Error() string { return fmt.Sprintf("the backend did not answer within %s", l.d) }

// bound is the context of one call. It ends with the caller's; with cause limit when that time has
// passed; and with cause ErrClosed when the client is closed. The contexts of package context
// behind it are made only when its end is requested, which a backend that answers at once never
// does.
//
// The time is an alarm, not a timer of its own: see package alarm. So a context derived from this
// one reports Canceled when that time has passed, with the cause, where this one reports
// DeadlineExceeded.
type bound struct {
	caller context.Context
	client context.Context // nil: Close does not end it
	limit  *timeLimit      // nil: it has no time
	until  time.Time       // when that time has passed
	alarms *alarm.Clock

	mu    sync.Mutex
	ctx   context.Context // nil until its end is requested
	stop  func()
	ended bool
}

// bounded returns a context that ends with the caller's, and with cause limit when that time has
// passed. A nil limit sets no time. The caller must end the context.
func bounded(caller context.Context, limit *timeLimit, alarms *alarm.Clock) *bound {
	b := &bound{caller: caller, limit: limit, alarms: alarms}
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

// asked returns the context of package context, which is made now if there is none.
func (b *bound) asked() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx == nil {
		b.make()
	}
	return b.ctx
}

func (b *bound) make() {
	ctx, cancel := context.WithCancelCause(b.caller)
	quiet, detach := func() bool { return true }, func() bool { return true }
	if b.limit != nil {
		if left := time.Until(b.until); left > 0 {
			quiet = b.alarms.After(left, func() { cancel(b.limit) })
		} else {
			cancel(b.limit)
		}
	}
	if b.client != nil {
		detach = context.AfterFunc(b.client, func() { cancel(ErrClosed) })
		if b.client.Err() != nil {
			cancel(ErrClosed) // now: AfterFunc takes a moment
		}
	}
	b.ctx, b.stop = ctx, func() {
		quiet()
		detach()
		cancel(nil)
	}
	if b.ended {
		b.stop()
	}
}

// lives reports whether its end has not been requested yet, and nothing has ended the context.
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
	ctx := b.asked()
	err := ctx.Err()
	if err != nil && b.limit != nil && context.Cause(ctx) == error(b.limit) {
		return context.DeadlineExceeded
	}
	return err
}

// Done implements context.Context.
func (b *bound) Done() <-chan struct{} { return b.asked().Done() }

// Deadline implements context.Context.
func (b *bound) Deadline() (time.Time, bool) {
	at, ok := b.caller.Deadline()
	if b.limit != nil && (!ok || b.until.Before(at)) {
		return b.until, true
	}
	return at, ok
}

// Value implements context.Context. Package context also gets the cause from it.
func (b *bound) Value(key any) any { return b.asked().Value(key) }
