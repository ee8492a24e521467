package kit

import (
	"errors"
	"slices"

	"github.com/dlock-go/dlock/driver"
)

// Outcome is what an error means for the outcome of a call. A driver derives it from its service's
// errors; the consequences are the same for all drivers.
type Outcome int

const (
	// Answered means that the service executed the call or refused it for good. Sending it again
	// does not help, and no copy of it is under way.
	Answered Outcome = iota
	// NotDone means that the call did nothing, and may succeed if it is sent again.
	NotDone
	// Unknown means that it is not known whether the call was or will be executed. It is sent again
	// if it may be sent twice; a request that it may have created has to be removed with a
	// tombstone.
	Unknown
)

// String returns the outcome in words.
func (o Outcome) String() string { return [...]string{"answered", "not done", "unknown"}[o] }

// NotSent is the error of a call that was not sent: no copy of it is under way.
type NotSent struct{ Err error }

// Error returns the reason.
func (e *NotSent) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NotSent) Unwrap() error { return e.Err }

// WasNotSent reports whether err is, or wraps, a [NotSent].
func WasNotSent(err error) bool { return errors.As(err, new(*NotSent)) }

// noes are the errors with which the queue refuses a request.
var noes = []error{driver.ErrHeld, driver.ErrLost, driver.ErrUpgrade, driver.ErrConflict}

// IsNo reports whether err means that the queue refused the Acquire: the request is not in any
// queue.
func IsNo(err error) bool {
	return err != nil && slices.ContainsFunc(noes, func(no error) bool { return errors.Is(err, no) })
}
