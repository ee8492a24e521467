package adapt

import (
	"context"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// run runs a call on a goroutine of its own and returns its error. If ctx ends or the client is
// closed, it returns at once, and the call, whose context has ended too, returns in the background.
func (b *Backend) run(ctx context.Context, call func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	under, cancel := context.WithCancel(ctx)
	began := b.life.Go(func() {
		defer cancel()
		defer context.AfterFunc(b.life.Context(), cancel)()
		done <- call(under)
	})
	if !began {
		cancel()
		return driver.ErrClosed
	}
	select {
	case err := <-done:
		if b.life.Over() {
			return driver.ErrClosed
		}
		if err != nil && ctx.Err() != nil && !driver.Refused(err) {
			return kit.Ended(ctx, err)
		}
		return kit.Hide(ctx, err)
	case <-ctx.Done():
		return ctx.Err()
	case <-b.life.Closed():
		return driver.ErrClosed
	}
}
