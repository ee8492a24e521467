package adapt

import (
	"context"
	"fmt"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend]. It shows the holders. Waiters leave no trace.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if !b.caps.Inspect {
		return driver.Queue{}, fmt.Errorf("%w: the holder of a lock on %s (%s) cannot be read", driver.ErrUnsupported, b.caps.Backend, b.caps.Format)
	}
	if b.life.Over() {
		return driver.Queue{}, driver.ErrClosed
	}
	if err := b.checkName(name); err != nil {
		return driver.Queue{}, err
	}
	found := make(chan []*driver.Entry, 1)
	err := b.run(ctx, func(ctx context.Context) error {
		es, err := b.holders(ctx, name)
		found <- es
		return err
	})
	if err != nil {
		return driver.Queue{}, err
	}
	var q driver.Queue
	for _, e := range <-found {
		e.Name = name
		if e.Owner.IsZero() {
			e.Owner = e.ID
		}
		if e.Join() {
			q.Joins = append(q.Joins, e)
		} else {
			q.Arrivals = append(q.Arrivals, e)
		}
	}
	return q, nil
}

// holders returns what the calls can read.
func (b *Backend) holders(ctx context.Context, name string) ([]*driver.Entry, error) {
	if b.sharer != nil {
		return b.sharer.Members(ctx, name)
	}
	e, err := b.calls.(Inspector).Holder(ctx, name)
	if e == nil {
		return nil, err
	}
	return []*driver.Entry{e}, err
}
