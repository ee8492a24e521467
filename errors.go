package dlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// The sentinels. Each licenses one conclusion; find them with [errors.Is]. An error that matches
// none of them, nor the context's, is the backend's own: the call's outcome is unknown, and dlock
// settles it in the background. No error matches [context.DeadlineExceeded] or [context.Canceled]
// while the caller's context lives.
var (
	// ErrHeld: TryLock found the lock held, or somebody waiting for it; or the wait of Lock ended,
	// by its context or by [Wait], while the request stood in the queue (the error matches the
	// context's then, too, if it was that). Nothing was left behind. A [*HeldError] says more.
	ErrHeld = driver.ErrHeld
	// ErrLost: the lease is over although it was not given back: it expired, was broken, or could
	// not be proved in time. Somebody else may hold the lock. It never comes back; stop what it
	// guarded. Of Lock: what it had was over each time before this process saw it; the caller holds
	// nothing.
	ErrLost = driver.ErrLost
	// ErrNotHeld: there is nothing to give back or break: Unlock was called before, or no hold has
	// the token of Break.
	ErrNotHeld = driver.ErrNotHeld
	// ErrUpgrade: an exclusive lock was asked under a shared hold of the same name. Waiting could
	// deadlock, so it was refused at once; the shared hold is unharmed.
	ErrUpgrade = driver.ErrUpgrade
	// ErrClosed: the client was closed, which ended its leases.
	ErrClosed = driver.ErrClosed
	// ErrConflict: the name is in use as a semaphore where a lock was asked, or the other way
	// round.
	ErrConflict = driver.ErrConflict
	// ErrUnsupported: this backend cannot do that; [Client.Capabilities] tell.
	ErrUnsupported = driver.ErrUnsupported
	// ErrInvalid: the call or the configuration is wrong; nothing was sent. The text says what is
	// allowed.
	ErrInvalid = driver.ErrInvalid
	// ErrInvalidName: the name is not valid. It matches ErrInvalid too.
	ErrInvalidName = fmt.Errorf("%w name", ErrInvalid)
)

// Error is what every function of this package returns when it fails: what was tried, on what, and
// why not.
type Error struct {
	// "open", "lock", "trylock", "unlock", "renew", "lease", "inspect", "list", "break", "close" …
	Op      string
	Name    string // of the lock; empty if the operation has none
	Backend string // the scheme; empty if there is none yet
	Err     error  // matches a sentinel, the context's error, or the backend's own
}

// Error returns the text of Err behind what was tried. It never holds a password.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString("dlock: ")
	s.WriteString(e.Op)
	if e.Name != "" {
		s.WriteByte(' ')
		s.WriteString(strconv.Quote(e.Name))
	}
	if e.Backend != "" {
		s.WriteString(" (" + e.Backend + ")")
	}
	s.WriteString(": " + e.Err.Error())
	return s.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// wrap makes err an *Error, once.
func wrap(op, name, backend string, err error) error {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) && error(e) == err {
		return err
	}
	return &Error{Op: op, Name: name, Backend: backend, Err: err}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// contextErr returns nil while ctx lives, and then its error together with its cause. A nil context
// is ErrInvalid.
func contextErr(ctx context.Context) error {
	if ctx == nil {
		return invalid("the context is nil")
	}
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && cause != err {
		if errors.Is(cause, ErrNotHeld) { // of the context's lease, and not of this call's
			return fmt.Errorf("%w: %v", err, cause)
		}
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// outcome returns the error of a function that ran under during, a context of a lease, itself made
// of ctx, and whose end is that of Unlock. A loss comes first, and is one fact: what the function
// says of the end of its context adds a text at most, and is not taken for the end of ctx.
func outcome(ctx, during context.Context, own, end error) error {
	switch {
	case own == nil || end == nil:
		return also(own, end)
	case !errors.Is(end, ErrLost) && !errors.Is(end, ErrClosed):
		return errors.Join(own, end)
	case own == during.Err() || own == context.Cause(during): //nolint:errorlint // it, and no more
		return end
	}
	said := ofEnd(during, own)
	if ctx.Err() == nil {
		own = hide(own)
	}
	if said {
		return fmt.Errorf("%w: %w", end, own)
	}
	return errors.Join(end, own)
}

// IsPermanent reports whether trying again cannot mend err: a mistake in the call or the
// configuration ([ErrInvalid]), what the backend cannot do ([ErrUnsupported]), a client that was
// closed ([ErrClosed]), an upgrade ([ErrUpgrade]). A loop around Lock or [Do] ends on those, and
// pauses after any other error before it goes on. It is false of nil.
func IsPermanent(err error) bool {
	for _, s := range []error{ErrInvalid, ErrUnsupported, ErrClosed, ErrUpgrade} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

var sentinels = []error{ErrHeld, ErrLost, ErrNotHeld, ErrUpgrade, ErrClosed, ErrConflict, ErrUnsupported, ErrInvalid}

// answered reports whether err is an answer of the backend, and not an unknown outcome.
func answered(err error) bool {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// explain makes what a call returned match why its context ended, if it did. While the caller's
// context lives it hides the errors of package context: they are of deadlines that are not the
// caller's.
func explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return hide(err)
	}
	cause := context.Cause(ctx)
	own := ofContext(err) // the driver says that a context ended, and not what the service says
	answer := !own && answered(err) && !errors.Is(err, ErrClosed)
	stood := own && errors.Is(err, ErrHeld)
	limit, timeUp := cause.(*timeLimit)
	switch {
	case answer:
		return err
	case cause == ErrClosed:
		return ErrClosed
	case timeUp && stood:
		return fmt.Errorf("all of the %s that Lock was to wait are over: %w", limit.d, heldOf(err))
	case timeUp && err == ctx.Err():
		return limit
	case timeUp:
		return fmt.Errorf("%w: %w", limit, hide(err))
	case stood:
		return driver.WaitedFor(ctx, heldOf(err))
	case err == ctx.Err():
		return contextErr(ctx)
	default:
		return fmt.Errorf("%w: %w", contextErr(ctx), hide(err))
	}
}

// heldOf returns what an error says of who holds the lock, which is ErrHeld at least.
func heldOf(err error) error {
	if own := (*ownHold)(nil); errors.As(err, &own) {
		return own
	}
	if by := (*HeldError)(nil); errors.As(err, &by) {
		return by
	}
	return ErrHeld
}

// ofContext reports whether err matches an error of package context. Those of package net do, too,
// when a time of their own is over.
func ofContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// hide keeps err, if it matches an error of package context, from doing so.
func hide(err error) error {
	if err == nil || !ofContext(err) {
		return err
	}
	return hidden{err}
}

// hidden is an error that matches all that it matched but the errors of package context.
type hidden struct{ error }

// Is matches what is hidden does.
func (h hidden) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(h.error, target)
}

// As finds what is hidden.
func (h hidden) As(target any) bool { return errors.As(h.error, target) }
