package kit

import (
	"errors"
	"slices"

	"github.com/dlock-go/dlock/driver"
)

// Outcome is what the error of a call says about the call. A driver derives it from its service's
// errors; what follows from it is the same for all.
type Outcome int

const (
	// Answered means that the service executed the call or refused it for good. To send it again
	// would not help, and no copy of it is under way.
	Answered Outcome = iota
	// NotDone means that the call did nothing, and may succeed if it is sent again.
	NotDone
	// Unknown means that nobody knows whether the call was or will be executed. It is sent again if
	// it may be sent twice; a request that it may have created has to be removed with a tombstone.
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

// WasNotSent reports whether err says that the call was not sent.
func WasNotSent(err error) bool { return errors.As(err, new(*NotSent)) }

// noes are the answers with which the queue refuses a request.
var noes = []error{driver.ErrHeld, driver.ErrLost, driver.ErrUpgrade, driver.ErrConflict}

// IsNo reports whether err is the queue's answer to an Acquire that it refused: the request stands
// nowhere.
func IsNo(err error) bool {
	return err != nil && slices.ContainsFunc(noes, func(no error) bool { return errors.Is(err, no) })
}
