package dlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// The sentinel errors. Each allows one conclusion; find them with [errors.Is]. An error that
// matches none of them, nor the context's error, is the backend's own: the outcome of the call is
// unknown, and dlock settles it in the background. No error matches [context.DeadlineExceeded] or
// [context.Canceled] before the caller's context has ended.
var (
	// ErrHeld means that TryLock found the lock held, or another request waiting for it; or that
	// the wait of Lock ended, by its context or by [Wait], while the request stood in the queue. If
	// the context ended, the error matches the context's error too. No request was left behind. The
	// error may be a [*HeldError], which describes a holder.
	ErrHeld = driver.ErrHeld
	// ErrLost means that the lease ended although it was not released. It expired, was broken, or
	// could not be renewed in time. Another owner may hold the lock. A lost lease never comes back:
	// stop the work that it guarded. From Lock it means that the hold in the context has ended, or
	// that its grants or places in the queue repeatedly expired before this process saw them. The
	// caller holds nothing.
	ErrLost = driver.ErrLost
	// ErrNotHeld means that there is nothing to release or to break. Unlock was called before, or
	// no hold has the token given to Break.
	ErrNotHeld = driver.ErrNotHeld
	// ErrUpgrade means that an exclusive lock was requested under a shared hold of the same name.
	// Waiting could deadlock, so it was refused at once. The shared hold is unharmed.
	ErrUpgrade = driver.ErrUpgrade
	// ErrClosed means that the client was closed, which ended its leases.
	ErrClosed = driver.ErrClosed
	// ErrConflict means that a lock was requested on a name that is in use as a semaphore, or the
	// reverse.
	ErrConflict = driver.ErrConflict
	// ErrUnsupported means that this backend cannot do that; see [Client.Capabilities].
	ErrUnsupported = driver.ErrUnsupported
	// ErrInvalid means that the call or the configuration is wrong, and that nothing was sent. The
	// text says what is allowed.
	ErrInvalid = driver.ErrInvalid
	// ErrInvalidName means that the name is not 1 to 255 bytes of UTF-8 without control characters.
	// It matches ErrInvalid too.
	ErrInvalidName = fmt.Errorf("%w name", ErrInvalid)
)

// Error is the error that the functions of this package return: the operation, the lock, and the
// reason.
type Error struct {
	// the operation: "open", "lock", "trylock", "unlock", "renew", "lease", "inspect", "list", …
	Op      string
	Name    string // of the lock; empty if the operation has none
	Backend string // the scheme; empty if there is none yet
	Err     error  // matches a sentinel, the context's error, or the backend's own
}

const prefix = "dlock: "

// Error returns the operation, the lock and the text of Err. It never contains a password.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString(prefix)
	s.WriteString(e.Op)
	if e.Name != "" {
		s.WriteByte(' ')
		name, more := e.Name, ""
		if len(name) > maxText { // it was refused
			name, more = name[:maxText/4], "…"
		}
		s.WriteString(strconv.Quote(name) + more)
	}
	if e.Backend != "" {
		s.WriteString(" (" + e.Backend + ")")
	}
	s.WriteString(": " + e.Err.Error())
	return s.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// wrap makes err an *Error, unless it is one.
func wrap(op, name, backend string, err error) error {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) && error(e) == err {
		return err
	}
	return &Error{Op: op, Name: name, Backend: backend, Err: err}
}

// Where ErrNotHeld comes from, for people.
var (
	errReleased = fmt.Errorf("%w: the lease was released before", ErrNotHeld)
	errNoHold   = fmt.Errorf("%w: no hold of the name has this token", ErrNotHeld)
)

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
		if errors.Is(cause, ErrNotHeld) { // it is about the context's lease, not about this call
			return fmt.Errorf("%w: %s", err, unprefixed(cause))
		}
		return &endedBy{err, cause}
	}
	return err
}

// endedBy is the error of a context together with its cause.
type endedBy struct{ err, cause error }

func (e *endedBy) Error() string { return e.err.Error() + ": " + unprefixed(e.cause) }

// Unwrap returns all that it matches.
func (e *endedBy) Unwrap() []error { return []error{e.err, e.cause} }

// unprefixed returns the text of an error for use within another one of this package.
func unprefixed(err error) string { return strings.TrimPrefix(fmt.Sprint(err), prefix) }

// rounded spares readers the fractions of a millisecond.
func rounded(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d
	}
	return d.Round(time.Millisecond)
}

// outcome returns the error of a function that ran under during, the context of a lease derived
// from ctx. own is the error of the function, and end that of Unlock. A loss comes first, and is
// one fact: what the function reports about the end of its context adds at most a text, and is not
// mistaken for the end of ctx.
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

// IsPermanent reports whether err would persist if the call were repeated: it is a mistake in the
// call or the configuration ([ErrInvalid]), an operation that the backend does not support
// ([ErrUnsupported]), a closed client ([ErrClosed]), or an upgrade ([ErrUpgrade]). A loop around
// Lock or [Do] should end on such an error, and pause after any other before it repeats the call.
// IsPermanent is false for nil.
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

// explain returns the error of a call so that it matches why the call's context ended, if it did.
// While the caller's context lives, errors of package context are hidden: they come from deadlines
// that are not the caller's.
func explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return hide(err)
	}
	cause := context.Cause(ctx)
	own := ofContext(err) // the driver reports the end of a context, not an answer of the service
	answer := !own && answered(err) && !errors.Is(err, ErrClosed)
	stood := own && errors.Is(err, ErrHeld)
	limit, timeUp := cause.(*timeLimit)
	switch {
	case answer:
		return err
	case cause == ErrClosed:
		return ErrClosed
	case timeUp && stood:
		return fmt.Errorf("not granted within %s: %w", rounded(limit.d), heldOf(err))
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

// heldOf returns the part of err that describes the holder, or else ErrHeld.
func heldOf(err error) error {
	if own := (*ownHold)(nil); errors.As(err, &own) {
		return own
	}
	if by := (*HeldError)(nil); errors.As(err, &by) {
		return by
	}
	return ErrHeld
}

// ofContext reports whether err matches an error of package context. Errors of package net match
// too, after a timeout of their own.
func ofContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// hide returns err, or an error that does not match those of package context if err does.
func hide(err error) error {
	if err == nil || !ofContext(err) {
		return err
	}
	return hidden{err}
}

// hidden matches all that its error matches, except the errors of package context.
type hidden struct{ error }

// Is reports whether the hidden error matches target.
func (h hidden) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(h.error, target)
}

// As finds target in the hidden error.
func (h hidden) As(target any) bool { return errors.As(h.error, target) }
