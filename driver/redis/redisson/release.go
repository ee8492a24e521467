package redisson

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/rlock"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// Release implements [adapt.Calls]. Each member is released at once.
func (c *calls) Release(ctx context.Context, r driver.Request, _ time.Duration) error {
	key := c.layout.Key(r.Name)
	now, first := rlock.Channels(key)
	keys, sharded, kept := []string{key}, "-", int64(0)
	if c.feeds.cluster != nil {
		sharded = "SPUBLISH"
	}
	if r.Uncertain {
		keys, kept = append(keys, rlock.Tombstone(key, r.ID)), millis(r.TTL)
	}
	return c.whether(ctx, releaseScript, r, keys, kept, sharded, now, first)
}

// whether runs a script that returns whether the request had the lock.
func (c *calls) whether(ctx context.Context, s *script.Script, r driver.Request, keys []string, args ...any) error {
	reply, err := c.run(ctx, s == releaseScript, s, keys, append([]any{r.ID.String()}, args...)...)
	switch {
	case err != nil:
		return err
	case reply == int64(1):
		return nil
	case reply == int64(0):
		return driver.ErrLost
	}
	return unexpected(reply)
}
