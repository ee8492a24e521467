package redisson

import (
	"context"

	"github.com/dlock-go/dlock/driver/redis/internal/rlock"
)

// Watch implements [adapt.Waker]. The messages of all generations of the protocol wake.
func (c *calls) Watch(ctx context.Context, name string, ready, wake func()) error {
	now, first := rlock.Channels(c.layout.Key(name))
	w := &watch{ready: ready, wake: wake, failed: make(chan error, 1), missing: 1}
	defer c.feeds.remove(w)
	if err := c.feeds.add(w, nil, now, first); err != nil {
		return err
	}
	if cluster := c.feeds.cluster; cluster != nil {
		node, err := cluster.MasterForKey(ctx, now)
		if err == nil {
			err = c.feeds.add(w, node, now)
		}
		if err != nil {
			return c.explain(ctx, err)
		}
	}
	c.feeds.added(w)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-w.failed:
		return c.explain(ctx, err)
	}
}
