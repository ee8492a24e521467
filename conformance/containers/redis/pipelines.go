package redis

import (
	"context"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
)

// Pipelines is a hook that counts what a client sends: pipelines, and single commands. On the wire,
// a long pipeline can look like two, as the server answers its beginning before the rest has
// arrived.
type Pipelines struct{ atomic.Int64 }

// DialHook implements [goredis.Hook].
func (*Pipelines) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook implements [goredis.Hook].
func (n *Pipelines) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		n.Add(1)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [goredis.Hook].
func (n *Pipelines) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		n.Add(1)
		return next(ctx, cmds)
	}
}
