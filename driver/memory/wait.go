package memory

import (
	"context"

	"github.com/dlock-go/dlock/driver"
)

// wait is where a waiting Acquire finds its answer. Whoever grants or removes the request sets the
// answer, and closes done.
type wait struct {
	done  chan struct{}
	grant driver.Grant
	err   error
}

// await returns the answer to a request that waits.
func (b *Backend) await(ctx context.Context, r driver.Request, w *wait) (driver.Grant, error) {
	select {
	case <-w.done:
		return w.grant, w.err
	case <-ctx.Done():
		// The request goes, though it may be granted by now; then whoever follows is granted.
		b.Release(ctx, r)
		return driver.Grant{}, driver.Waited(ctx)
	}
}

// answer ends the wait for the request, if there is one.
func (r *request) answer(g driver.Grant, err error) {
	if w := r.wait; w != nil {
		r.wait, w.grant, w.err = nil, g, err
		close(w.done)
	}
}
