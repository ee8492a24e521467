package etcd

import (
	"context"
	"sync"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// outbox feeds a stream, so that no caller blocks on a server that does not read.
type outbox[T any] struct {
	mu    sync.Mutex
	items []T
	wake  kit.Signal
}

func newOutbox[T any]() *outbox[T] { return &outbox[T]{wake: kit.NewSignal()} }

func (o *outbox[T]) add(item T) {
	o.mu.Lock()
	o.items = append(o.items, item)
	o.mu.Unlock()
	o.wake.Set()
}

// run sends the added items until ctx or the stream ends.
func (o *outbox[T]) run(ctx context.Context, send func(T) error) {
	for {
		o.mu.Lock()
		items := o.items
		o.items = nil
		o.mu.Unlock()
		for _, item := range items {
			if send(item) != nil {
				return
			}
		}
		if len(items) > 0 {
			continue
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return
		}
	}
}
