package kit

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/internal/background"
)

// Repeat calls f until it returns nil, and pauses longer after each failure. It returns false if
// ctx, the client's, ends first. It is for removing what only the driver can remove: what it finds
// in its service and what belongs to none of its requests. Requests are released by the driver's
// caller.
func Repeat(ctx context.Context, f func(context.Context) error) bool {
	loop := background.Loop{Min: 20 * time.Millisecond, Max: 2 * time.Second}
	return loop.Run(ctx, func(ctx context.Context) background.Step {
		if f(ctx) == nil {
			return background.Done
		}
		return background.Failed
	})
}
