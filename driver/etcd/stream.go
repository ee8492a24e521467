package etcd

import (
	"context"
	"sync"
)

// outbox feeds a stream, so that nobody waits for a server that does not read.
type outbox[T any] struct {
	mu    sync.Mutex
	items []T
	wake  chan struct{}
}

func newOutbox[T any]() *outbox[T] { return &outbox[T]{wake: make(chan struct{}, 1)} }

func (o *outbox[T]) add(item T) {
	o.mu.Lock()
	o.items = append(o.items, item)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run sends what is added until ctx or the stream ends.
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
