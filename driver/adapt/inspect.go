package adapt

import (
	"context"
	"fmt"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend]. It shows the holder. Waiters leave no trace.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	in, ok := b.calls.(Inspector)
	if !ok {
		return driver.Queue{}, fmt.Errorf("%w: the holder of a lock on %s (%s) cannot be read", driver.ErrUnsupported, b.caps.Backend, b.caps.Format)
	}
	if b.life.Over() {
		return driver.Queue{}, driver.ErrClosed
	}
	if err := b.checkName(name); err != nil {
		return driver.Queue{}, err
	}
	found := make(chan *driver.Entry, 1)
	err := b.run(ctx, func(ctx context.Context) error {
		e, err := in.Holder(ctx, name)
		found <- e
		return err
	})
	if err != nil {
		return driver.Queue{}, err
	}
	e := <-found
	if e == nil {
		return driver.Queue{}, nil
	}
	e.Name = name
	if e.Owner.IsZero() {
		e.Owner = e.ID
	}
	return driver.Queue{Arrivals: []*driver.Entry{e}}, nil
}
