package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// replicaTimeout is how long replicas have to confirm a grant.
const replicaTimeout = time.Second

// errReplicas means that the master granted, and not enough replicas have the grant.
var errReplicas = errors.New("not confirmed by enough replicas")

// runOnReplicas runs an acquire, and returns a grant only if enough replicas have it. It does not
// wait beyond ctx, and goes on alone then.
func (b *Backend) runOnReplicas(ctx context.Context, c *call) (any, error) {
	type result struct {
		reply any
		err   error
	}
	done := make(chan result, 1)
	c.copies, c.sent = 1, time.Now()
	go func() {
		reply, err := b.acquireAndWait(c)
		done <- result{reply, err}
	}()
	select {
	case r := <-done:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.life.Closed():
		return nil, driver.ErrClosed
	}
}

// acquireAndWait runs the call with a WAIT behind it, on one connection: WAIT is about the writes
// of its connection only.
func (b *Backend) acquireAndWait(c *call) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*replicaTimeout)
	defer cancel()
	node := script.Pipeliner(b.rdb)
	if cc, ok := b.rdb.(*redis.ClusterClient); ok {
		master, err := cc.MasterForKey(ctx, c.Keys[0])
		if err != nil {
			return nil, err
		}
		node = master
	}
	for full := false; ; full = true {
		pipe := node.Pipeline()
		cmd := c.Command(ctx, full)
		_ = pipe.Process(ctx, cmd)
		wait := redis.NewIntCmd(ctx, "wait", b.o.WaitReplicas, replicaTimeout.Milliseconds())
		_ = pipe.Process(ctx, wait)
		_, _ = pipe.Exec(ctx)
		reply, err := cmd.Result()
		if !full && err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			continue
		}
		if err != nil {
			return nil, err
		}
		if a, err := parseAcquire(reply); err != nil || !a.granted {
			return reply, nil
		}
		if n, err := wait.Result(); err != nil {
			return nil, fmt.Errorf("%w: %w", errReplicas, err)
		} else if n < int64(b.o.WaitReplicas) {
			return nil, fmt.Errorf("%w: %d of %d within %s", errReplicas, n, b.o.WaitReplicas, replicaTimeout)
		}
		return reply, nil
	}
}
