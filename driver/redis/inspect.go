package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	reply, err := b.ask(ctx, name, b.call(inspectScript, name))
	if err != nil {
		return driver.Queue{}, err
	}
	return parseQueue(name, reply)
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	f := "0"
	if force {
		// This may be sent twice and answers truly: it says whether there is a hold to remove.
		if err := b.Break(ctx, name, t, false); err != nil {
			return err
		}
		f = "1"
	}
	c := b.call(breakScript, name, strconv.FormatUint(uint64(t), 10), f)
	c.rare = true
	reply, err := b.ask(ctx, name, c)
	if err != nil {
		return err
	}
	// By force there was a hold: what is left of none has ended since it was marked.
	if n, _ := reply.(int64); n == 0 && !force {
		return driver.ErrNotHeld
	}
	return nil
}

// List implements [driver.Lister]. It reads the keys with SCAN, on all masters of a Cluster, and
// then the queue of each: most keys only remember a token.
func (b *Backend) List(ctx context.Context) ([]string, error) {
	if b.life.Over() {
		return nil, driver.ErrClosed
	}
	type result struct {
		names []string
		err   error
	}
	done := make(chan result, 1)
	go func() { // the client library may not mind the end of ctx
		names, err := b.list(ctx)
		done <- result{names, err}
	}()
	select {
	case r := <-done:
		return r.names, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.life.Closed():
		return nil, driver.ErrClosed
	}
}

func (b *Backend) list(ctx context.Context) ([]string, error) {
	cc, ok := b.rdb.(*redis.ClusterClient)
	if !ok {
		return b.listNode(ctx, b.rdb)
	}
	var mu sync.Mutex
	seen := map[string]bool{} // a slot that moves is on two nodes
	err := cc.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		names, err := b.listNode(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		for _, name := range names {
			seen[name] = true
		}
		return err
	})
	return slices.Collect(maps.Keys(seen)), b.explain(ctx, "*", err)
}

// listNode returns the names that have requests, of those whose keys are on one node.
func (b *Backend) listNode(ctx context.Context, c redis.Cmdable) (used []string, err error) {
	seen := map[string]bool{} // SCAN may return a key twice
	it := c.Scan(ctx, 0, b.space.Pattern(), 1000).Iterator()
	for it.Next(ctx) {
		if name, ok := b.space.Name(it.Val()); ok {
			seen[name] = true
		}
	}
	if err := it.Err(); err != nil {
		return nil, b.explain(ctx, "*", err)
	}
	for names := range slices.Chunk(slices.Collect(maps.Keys(seen)), pipelineMax) {
		calls := make([]*call, len(names))
		for i, name := range names {
			calls[i] = b.call(inspectScript, name)
		}
		b.pipes.exec(ctx, calls)
		for i, c := range calls {
			if c.Err != nil {
				return nil, b.explain(ctx, names[i], c.Err)
			}
			q, err := parseQueue(names[i], c.Reply)
			if err != nil {
				return nil, err
			}
			if q.Len() > 0 {
				used = append(used, names[i])
			}
		}
	}
	return used, nil
}

// parseQueue reads what lua/inspect.lua returns.
func parseQueue(name string, reply any) (driver.Queue, error) {
	l, ok := reply.([]any)
	if !ok || len(l) != 3 {
		return driver.Queue{}, fmt.Errorf("unexpected reply %v", reply)
	}
	now, _ := l[0].(int64)
	var q driver.Queue
	for _, part := range l[1:] {
		var es []*driver.Entry
		members, _ := part.([]any)
		for _, m := range members {
			member, _ := m.(string)
			e, err := parseEntry(name, member, now)
			if err != nil {
				return driver.Queue{}, err
			}
			es = append(es, e)
		}
		// Those who hold come in no order. Those who wait come in theirs, and have no tokens.
		slices.SortStableFunc(es, func(x, y *driver.Entry) int {
			return cmp.Compare(x.Token, y.Token)
		})
		for _, e := range es {
			if e.Join() {
				q.Joins = append(q.Joins, e)
			} else {
				q.Arrivals = append(q.Arrivals, e)
			}
		}
	}
	return q, nil
}

// parseEntry reads a request: a member s, x or w. lua/queue.lua has its parts.
func parseEntry(name, member string, now int64) (*driver.Entry, error) {
	f := strings.SplitN(member, " ", 11)
	if len(f) != 11 || f[0] == "" {
		return nil, fmt.Errorf("unexpected request %q", member)
	}
	e := &driver.Entry{}
	e.Name, e.Label = name, f[10]
	if f[1] == "s" {
		e.Mode = driver.Shared
	}
	var n [5]int64
	for i, at := range []int{2, 4, 5, 6, 9} {
		v, err := strconv.ParseInt(f[at], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("unexpected request %q", member)
		}
		n[i] = v
	}
	e.Limit, e.TTL = int(n[0]), time.Duration(n[3])*time.Microsecond
	if f[0][0] != 'w' { // one that waits has its place there
		e.Token = driver.Token(n[1])
	}
	e.Left, e.Age = time.Duration(n[2]-now)*time.Microsecond, time.Duration(now-n[4])*time.Microsecond
	e.Fixed, e.Broken = strings.Contains(f[8], "f"), strings.Contains(f[8], "b")
	err := errors.Join(e.ID.UnmarshalText([]byte(f[0][1:])), e.Owner.UnmarshalText([]byte(f[3])), e.Client.UnmarshalText([]byte(f[7])))
	return e, err
}
