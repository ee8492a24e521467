package kit

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Pause waits for d. It returns early with the error of ctx if ctx ends, and with
// [driver.ErrClosed] if closed is closed. closed may be nil.
func Pause(ctx context.Context, closed <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return driver.ErrClosed
	}
}

// Within runs f and reports whether f returned within d. Otherwise f continues in the background.
func Within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
