// Package refusal classifies the errors of Lock for a server that has to answer a request. Packages
// dlockhttp and dlockgrpc map the kinds to the codes of their protocols.
package refusal

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock"
)

// Kind is the meaning of an error of Lock for the client of a server.
type Kind int

const (
	Held        Kind = iota + 1 // the lock is held: a conflict
	WaitedOut                   // the request's context ended first
	Unavailable                 // the lock service failed or did not answer; retrying may help
	BadRequest                  // the name, which comes from the request, is not valid
	Mistake                     // in the server's program: retrying does not help
)

// Of returns the kind of a non-nil error of Lock, which was called with ctx.
func Of(ctx context.Context, err error) Kind {
	ended := ctx.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
	switch {
	case ended:
		return WaitedOut
	case errors.Is(err, dlock.ErrHeld), errors.Is(err, dlock.ErrConflict): // or as another kind
		return Held
	case errors.Is(err, dlock.ErrInvalidName):
		return BadRequest
	case errors.Is(err, dlock.ErrClosed): // the server is shutting down
		return Unavailable
	case dlock.IsPermanent(err):
		return Mistake
	}
	return Unavailable
}
