package kit

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/internal/background"
)

// SurelyExpired returns how long after it was last renewed a request with the TTL has expired for
// sure, whatever was late: a copy of its acquire, or the service's clock.
func SurelyExpired(ttl time.Duration) time.Duration { return 2*ttl + 10*time.Second }

// Settle finds out, in the background, that a request stands nowhere any more whose outcome is
// unknown. It calls release until that returns nil, and pauses longer after each failure. It gives
// up when the request has surely expired; if ttl is 0 it never does. It returns false if ctx, which
// is the client's, ended before: then Close has to release the request.
func Settle(ctx context.Context, ttl time.Duration, release func(context.Context) error) bool {
	until := time.Now().Add(SurelyExpired(ttl))
	loop := background.Loop{Min: 20 * time.Millisecond, Max: 2 * time.Second}
	return loop.Run(ctx, func(ctx context.Context) background.Step {
		if ttl > 0 && time.Now().After(until) || release(ctx) == nil {
			return background.Done
		}
		return background.Failed
	})
}
