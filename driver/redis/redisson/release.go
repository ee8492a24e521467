package redisson

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/rlock"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// Release implements [adapt.Calls].
func (c *calls) Release(ctx context.Context, r driver.Request, after time.Duration) error {
	key := c.layout.Key(r.Name)
	now, first := rlock.Channels(key)
	sharded, kept, stays := "-", int64(0), int64(0)
	if c.feeds.cluster != nil {
		sharded = "SPUBLISH"
	}
	if r.Uncertain {
		kept = millis(r.TTL)
	}
	if after > 0 {
		stays = millis(after)
	}
	return c.whether(ctx, releaseScript, r, []string{key, rlock.Tombstone(key, r.ID)}, kept, stays, sharded, now, first)
}

// whether runs a script that returns whether the request had the lock.
func (c *calls) whether(ctx context.Context, s *script.Script, r driver.Request, keys []string, args ...any) error {
	reply, err := c.run(ctx, s == releaseScript, s, keys, append([]any{c.layout.Field(r)}, args...)...)
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
