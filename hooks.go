package dlock

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/hold"
)

// Hooks observe what a client does, for metrics and traces. Each is called synchronously, from any
// goroutine, with no internal mutex held, and must not block. A hook that blocks delays the caller
// of Lock, or the calls of other hooks, but never the notification of leases, their renewal or
// their release. A hook that panics is logged, and has no other effect.
//
// Fields that are nil cost nothing, and neither does a client without hooks. Fields may be added:
// write literals with field names.
type Hooks struct {
	// Lock is called at the beginning of each Lock and TryLock of this client's locks; for [All],
	// once for each part of this client. The context that it returns, if not nil, replaces the
	// caller's for this call. done, if not nil, is called once, with what Lock returns.
	Lock func(ctx context.Context, op LockOp) (_ context.Context, done func(*Lease, error))

	// Ended is called once for each hold of this client, when it has ended and all of its leases
	// report that. ctx is the context of the Lock that began the hold, as its hooks returned it; it
	// carries values, and may have ended. A re-entry shares its hold with other leases and has no
	// end of its own.
	Ended func(ctx context.Context, end HoldEnd)

	// Renewed is called after each renewal: of one batch of holds with one TTL, or of the one hold
	// that [Lease.Renew] renews.
	Renewed func(Renewal)
}

// LockOp describes a Lock or TryLock that begins.
type LockOp struct {
	Name    string // of the lock
	Backend string // the scheme
	Try     bool   // it does not wait: TryLock, or Wait(0)
	Shared  bool   // a reader, or a permit of a semaphore
	Limit   int    // of a semaphore; 0: no semaphore
	TTL     time.Duration
	// it re-enters a hold of this client, without a call to the backend; there is no new hold
	Reenters bool
}

// HoldEnd describes a hold that has ended.
type HoldEnd struct {
	Name    string // of the lock
	Backend string // the scheme
	Token   Token
	Held    time.Duration // from its grant until it ended
	At      time.Time     // when it ended
	// nil: released; otherwise it matches [ErrLost], or [ErrClosed] if the client's Close ended it
	Err  error
	Loss Loss // why a hold was lost; empty if it was not
}

// Loss is the reason why a hold was lost. Its text is fit for the label of a metric.
type Loss string

// The reasons of a loss. Others may be added.
const (
	LossNotRenewed Loss = hold.NotRenewed // "not_renewed": no renewal succeeded in time
	LossDenied     Loss = hold.Denied     // "denied": the backend did not have the hold any more
	LossReported   Loss = hold.Reported   // "reported": the backend reported the loss by itself
	LossTimeUp     Loss = hold.TimeUp     // "time_up": the time of a fixed lease ended, as planned
)

// Renewal describes one call that renewed holds.
type Renewal struct {
	Backend string        // the scheme
	TTL     time.Duration // of the holds
	Holds   int           // in the call
	Unknown int           // of those: the outcome is unknown, and they are tried again
	Lost    int           // of those: lost
	Took    time.Duration
}

type hooksOption Hooks

func (h hooksOption) client(s *settings) { s.hooks = append(s.hooks, Hooks(h)) }

// Observe makes the client call the hooks. If it is given several times, all hooks are called, in
// that order; done and Ended in reverse order.
func Observe(h Hooks) Option { return hooksOption(h) }

// observers are the hooks of a client, without those that are nil.
type observers struct {
	lock    []func(context.Context, LockOp) (context.Context, func(*Lease, error))
	ended   []func(context.Context, HoldEnd)
	renewed []func(Renewal)

	backend string
	log     *slog.Logger
}

func newObservers(hooks []Hooks, backend string, log *slog.Logger) observers {
	o := observers{backend: backend, log: log}
	for _, h := range hooks {
		if h.Lock != nil {
			o.lock = append(o.lock, h.Lock)
		}
		if h.Ended != nil {
			o.ended = append(o.ended, h.Ended)
		}
		if h.Renewed != nil {
			o.renewed = append(o.renewed, h.Renewed)
		}
	}
	return o
}

// guard calls a hook, and logs its panic.
func (o *observers) guard(hook string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			o.log.Error("dlock: a hook panicked", "hook", hook, "backend", o.backend, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
	}()
	f()
}

// callLock calls the hooks for a Lock that begins. It returns the context for it, and a function to
// call at its end.
func (o *observers) callLock(ctx context.Context, op LockOp) (context.Context, func(*Lease, error)) {
	var dones []func(*Lease, error)
	for _, f := range o.lock {
		o.guard("Lock", func() {
			next, done := f(ctx, op)
			if next != nil {
				ctx = next
			}
			if done != nil {
				dones = append(dones, done)
			}
		})
	}
	return ctx, func(l *Lease, err error) {
		for _, done := range slices.Backward(dones) {
			o.guard("done of Lock", func() { done(l, err) })
		}
	}
}

// onEnded returns a function that calls the hooks when a hold that a Lock under ctx began has
// ended.
func (o *observers) onEnded(ctx context.Context) func(*hold.Hold, hold.End) {
	return func(h *hold.Hold, e hold.End) {
		end := HoldEnd{Name: h.Request().Name, Backend: o.backend, Token: h.Token(), Held: e.Held, At: e.At}
		if e.Err != driver.ErrNotHeld {
			end.Err, end.Loss = wrap("lease", end.Name, o.backend, h.Cause(e.Err)), Loss(e.Why)
		}
		for _, f := range slices.Backward(o.ended) {
			o.guard("Ended", func() { f(ctx, end) })
		}
	}
}

// callRenewed calls the hooks for a renewal.
func (o *observers) callRenewed(r hold.Renewal) {
	for _, f := range o.renewed {
		o.guard("Renewed", func() {
			f(Renewal{Backend: o.backend, TTL: r.TTL, Holds: r.Holds, Unknown: r.Unknown, Lost: r.Lost, Took: r.Took})
		})
	}
}
