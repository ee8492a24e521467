package redis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// List implements [driver.Lister] with SCAN, over all masters of a Cluster, and a look at each
// name: most keys only remember a token.
func (b *Backend) List(ctx context.Context) ([]string, error) {
	if b.ctx.Err() != nil {
		return nil, driver.ErrClosed
	}
	type result struct {
		names []string
		err   error
	}
	done := make(chan result, 1)
	go func() { // the client library does not heed the end of ctx
		names, err := b.list(ctx)
		done <- result{names, err}
	}()
	select {
	case r := <-done:
		return r.names, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.stop:
		return nil, driver.ErrClosed
	}
}

func (b *Backend) list(ctx context.Context) ([]string, error) {
	var mu sync.Mutex
	seen, used := map[string]bool{}, []string(nil)
	scan := func(ctx context.Context, c redis.Cmdable) error {
		var names []string
		it := c.Scan(ctx, 0, b.space.Pattern(), 1000).Iterator()
		for it.Next(ctx) {
			name, ok := b.space.Name(it.Val())
			mu.Lock()
			if ok && !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
			mu.Unlock()
		}
		for len(names) > 0 && it.Err() == nil {
			calls := make([]*call, min(len(names), batchMax))
			for i := range calls {
				calls[i] = b.call(inspectScript, names[i])
			}
			script.Exec(ctx, b.rdb, calls)
			for i, c := range calls {
				if c.Err != nil {
					return b.explain(ctx, names[i], c.Err)
				}
				if q, err := parseQueue(names[i], c.Reply); err != nil {
					return err
				} else if q.Len() > 0 {
					mu.Lock()
					used = append(used, names[i])
					mu.Unlock()
				}
			}
			names = names[len(calls):]
		}
		return b.explain(ctx, "*", it.Err())
	}
	if cc, ok := b.rdb.(*redis.ClusterClient); ok {
		err := cc.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return scan(ctx, c) })
		return used, b.explain(ctx, "*", err)
	}
	return used, scan(ctx, b.rdb)
}
