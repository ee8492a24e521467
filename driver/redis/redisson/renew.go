package redisson

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Extend implements [adapt.Calls]. It needs the lock's key alone, so that holds are kept while the
// slot moves in a Cluster.
func (c *calls) Extend(ctx context.Context, r driver.Request, ttl time.Duration) error {
	return c.whether(ctx, extendScript, r, []string{c.layout.Key(r.Name)}, millis(ttl))
}
