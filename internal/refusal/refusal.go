// Package refusal says what a server tells its client when a lock was not got: one meaning, which
// dlockhttp and dlockgrpc put into the words of their protocols.
package refusal

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock"
)

// Kind is what the error of a Lock means to whoever asked the server for something.
type Kind int

const (
	Held        Kind = iota + 1 // somebody else has the lock: a conflict
	WaitedOut                   // the request's own context ended first, whatever it waited for
	Unavailable                 // the service of the locks did not say; trying again may help
	BadRequest                  // what the client sent makes no lock: a name that is not valid
	Mistake                     // of the server's program: trying again does not help
)

// Of returns the kind of an error of Lock under that context, which is not nil.
func Of(ctx context.Context, err error) Kind {
	ended := ctx.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
	switch {
	case ended:
		return WaitedOut
	case errors.Is(err, dlock.ErrHeld), errors.Is(err, dlock.ErrConflict): // or as another kind
		return Held
	case errors.Is(err, dlock.ErrInvalidName):
		return BadRequest
	case errors.Is(err, dlock.ErrClosed): // the server is on its way down
		return Unavailable
	case dlock.IsPermanent(err):
		return Mistake
	}
	return Unavailable
}
