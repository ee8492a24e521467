package redis

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// listNodes returns the names that list finds on the server, or on any master of a Cluster. list
// passes those of one node to take, and may do so several times. listNodes returns when ctx has
// ended or closed is closed.
func listNodes(
	ctx context.Context, rdb redis.UniversalClient, closed <-chan struct{},
	list func(ctx context.Context, node redis.Cmdable, take func([]string)) error,
) ([]string, error) {
	select {
	case <-closed:
		return nil, driver.ErrClosed
	default:
	}
	type result struct {
		names []string
		err   error
	}
	done := make(chan result, 1)
	go func() { // the client library may ignore the end of ctx
		names, err := collectNames(ctx, rdb, closed, list)
		done <- result{names, err}
	}()
	select {
	case r := <-done:
		return r.names, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-closed:
		return nil, driver.ErrClosed
	}
}

func collectNames(
	ctx context.Context, rdb redis.UniversalClient, closed <-chan struct{},
	list func(ctx context.Context, node redis.Cmdable, take func([]string)) error,
) ([]string, error) {
	var mu sync.Mutex
	seen := map[string]bool{} // SCAN may return a key twice, and a slot that moves is on two nodes
	names := []string{}
	take := func(more []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range more {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	for tries := 1; ; tries++ {
		var err error
		if cc, is := rdb.(*redis.ClusterClient); is {
			err = cc.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return list(ctx, c, take) })
		} else {
			err = list(ctx, rdb, take)
		}
		if err == nil || !fault.Transient(err) || tries == copiesMax {
			return names, err
		}
		reload(ctx, rdb, err)
		if err := pause(ctx, closed, 100*time.Millisecond, err); err != nil {
			return nil, err
		}
	}
}
