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
// error that says how it was broken, or neither if it is kept. If ctx ended before the law did, and
// nothing had been found wrong until then, nothing is known: the error matches the cause of ctx,
// and no other error does. The harness may call Fatalf and Cleanup of its T as in a test.
//
// What sees the deadline of ctx may fail ahead of it, and so would the law: give it a context that
// is cancelled in time, and has no deadline.
func (l Law) Try(ctx context.Context, h Harness) (skipped string, err error) {
	var v Verdict
	done := h.Done
	h.Done = func(t T, verdict Verdict) {
		if v = verdict; done != nil {
			done(t, verdict)
		}
	}
	r := &recorder{name: l.Name, limit: ctx}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.record(l, h)
	switch {
	case ctx.Err() != nil && (r.late || !r.failed):
		return "", fmt.Errorf("it did not come to an end: %w", context.Cause(ctx))
	case r.failed:
		return "", errors.New(r.String())
	}
	return v.Skipped, nil
}
