package kit

import (
	"context"
	"errors"
	"fmt"
)

// IsContext reports whether err matches an error of contexts.
func IsContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Hide returns an error like err that matches no error of contexts, unless ctx, the caller's, has
// ended. So a deadline that the driver or a client library set is not mistaken for the caller's.
// The error still matches everything else that err matches, and has the same text.
func Hide(ctx context.Context, err error) error {
	if ctx.Err() != nil || !IsContext(err) {
		return err
	}
	return &hidden{err}
}

// hidden is an error that matches what err matches, except the errors of contexts.
type hidden struct{ err error }

func (h *hidden) Error() string { return h.err.Error() }

// Is matches what the hidden error matches, except the errors of contexts.
func (h *hidden) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(h.err, target)
}

// As searches the hidden error.
func (h *hidden) As(target any) bool { return errors.As(h.err, target) }

// Ended returns the error of a call whose context ended: the error of ctx, with the reason why
// there was no earlier answer. The reason may be nil.
func Ended(ctx context.Context, why error) error {
	switch {
	case why == nil:
		return ctx.Err()
	case errors.Is(why, ctx.Err()):
		return why
	}
	return fmt.Errorf("%w: %w", ctx.Err(), why)
}
