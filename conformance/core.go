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
// they need no power of the harness, so they are suited to a service in production.
func Core() []Law {
	return slices.DeleteFunc(Laws(), func(l Law) bool { return !slices.Contains(core, l.Name) })
}

// Try checks the law outside of a test, until ctx ends. It returns the reason if the law was
// skipped, an error that describes the violation if the law was broken, and neither if the law
// holds. If ctx ended before the law and no violation had been found, the result is unknown: the
// error matches the cause of ctx, which no other error does. The harness may call Fatalf and
// Cleanup of its T as in a test.
//
// Give Try a context without a deadline that is cancelled in time: a driver that sees a deadline
// may fail ahead of it, and then the law would fail.
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
		return "", fmt.Errorf("the law did not finish: %w", context.Cause(ctx))
	case r.failed:
		return "", errors.New(r.String())
	}
	return v.Skipped, nil
}
