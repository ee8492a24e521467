package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// core are the laws without which locks are of no use.
var core = []string{
	"one-holder", "try-held", "owner-not-client", "same-request", "arrival-order", "cancelled-wait", "readers-together",
	"semaphore-limit", "reenter", "join", "tokens-grow", "expired-powerless", "close-frees",
}

// Core returns the laws without which locks are of no use. Together they take some seconds, and
// need no power of the harness: they are for a service that others use.
func Core() []Law {
	return slices.DeleteFunc(Laws(), func(l Law) bool { return !slices.Contains(core, l.Name) })
}

// Try checks the law outside of a test, until ctx ends. It returns why the law was skipped, or an
// error that says how it was broken, or neither if it is kept. The harness may call Fatalf and
// Cleanup of its T as in a test.
func (l Law) Try(ctx context.Context, h Harness) (skipped string, err error) {
	var v Verdict
	done := h.Done
	h.Done = func(t T, verdict Verdict) {
		if v = verdict; done != nil {
			done(t, verdict)
		}
	}
	r := &recorder{name: l.Name}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.record(l, h)
	switch {
	case r.failed && ctx.Err() != nil:
		return "", fmt.Errorf("it did not come to an end: %w", context.Cause(ctx))
	case r.failed:
		return "", errors.New(r.String())
	}
	return v.Skipped, nil
}
