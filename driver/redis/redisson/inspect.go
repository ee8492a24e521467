package redisson

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/rlock"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// Holder implements [adapt.Inspector].
func (c *calls) Holder(ctx context.Context, name string) (*driver.Entry, error) {
	key := c.layout.Key(name)
	keys, counter := []string{key}, c.layout.Counter(key)
	if counter != "" {
		keys = append(keys, counter)
	}
	reply, err := c.run(ctx, false, inspectScript, keys, "-")
	if err != nil {
		return nil, err
	}
	l, _ := reply.([]any)
	if len(l) != 2 {
		return nil, unexpected(reply)
	}
	found, ok := l[0].([]any)
	if !ok {
		return nil, unexpected(reply)
	}
	e, err := parseHolder(key, found)
	if e == nil || err != nil {
		return nil, err
	}
	if counter != "" && !e.Foreign {
		// A peer that is no RFencedLock has no token, and the counter has that of an earlier hold.
		if e.Token, err = tokenOf(l[1]); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// parseHolder reads what the scripts return of a holder; nil if there is none. If the key is no
// lock, the error says so.
func parseHolder(key string, reply []any) (*driver.Entry, error) {
	switch {
	case len(reply) == 0:
		return nil, nil
	case reply[0] == int64(-2) && len(reply) == 2:
		return nil, fmt.Errorf("%w: the key %q is no lock of Redisson, but of type %v, and is not changed; use another name, prefix or key (%s)",
			driver.ErrUnsupported, key, reply[1], rlock.Page)
	case reply[0] != int64(0) || len(reply) < 4 || len(reply)%2 != 0:
		return nil, unexpected(reply)
	}
	ms, is := reply[1].(int64)
	if !is {
		return nil, unexpected(reply)
	}
	e := &driver.Entry{Left: max(0, time.Duration(ms)*time.Millisecond), Foreign: true}
	var peers []string
	for fields := reply[4:]; len(fields) > 0; fields = fields[2:] {
		field, value := fmt.Sprint(fields[0]), fmt.Sprint(fields[1])
		if field == rlock.OfDlock && readRequest(e, value, fmt.Sprint(reply[2])) {
			return e, nil
		}
		if value != "1" {
			field += " (count " + value + ")"
		}
		peers = append(peers, field)
	}
	if e.Label = strings.Join(peers, ", "); len(peers) == 0 {
		e.Label = fmt.Sprintf("a hash of %v fields", reply[3])
	}
	return e, nil
}

// readRequest reads the request of a hold of dlock. It reports false for any other text.
func readRequest(e *driver.Entry, text, now string) bool {
	f := strings.SplitN(text, " ", 5)
	if len(f) != 5 {
		return false
	}
	var id, client driver.ID
	since, err1 := strconv.ParseInt(f[2], 10, 64)
	ttl, err2 := strconv.ParseInt(f[3], 10, 64)
	clock, err3 := strconv.ParseInt(now, 10, 64)
	if errors.Join(err1, err2, err3, id.UnmarshalText([]byte(f[0])), client.UnmarshalText([]byte(f[1]))) != nil {
		return false
	}
	e.ID, e.Client, e.Label, e.Foreign = id, client, f[4], false
	e.TTL, e.Age = time.Duration(ttl)*time.Millisecond, max(0, time.Duration(clock-since)*time.Millisecond)
	return true
}

// scanCount is how many keys one SCAN looks at.
const scanCount = 1000

// List implements [driver.Lister]. It reads the hashes with SCAN, on all masters of a Cluster. If
// nothing but the name is in a key, other hashes have such keys too: then it returns those whose
// fields are of Redisson or of dlock. If there is a prefix, it returns all that are not in dlock's
// own format.
func (b *Backend) List(ctx context.Context) ([]string, error) {
	type result struct {
		names []string
		err   error
	}
	done := make(chan result, 1)
	if !b.calls.feeds.life.Go(func() { // the client library may ignore the end of ctx
		names, err := b.calls.list(ctx)
		done <- result{names, b.calls.explain(ctx, err)}
	}) {
		return nil, driver.ErrClosed
	}
	select {
	case r := <-done:
		return r.names, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.calls.feeds.life.Closed():
		return nil, driver.ErrClosed
	}
}

func (c *calls) list(ctx context.Context) ([]string, error) {
	cluster := c.feeds.cluster
	if cluster == nil {
		return c.listNode(ctx, c.rdb)
	}
	var mu sync.Mutex
	names := map[string]bool{} // a slot that moves is on two nodes
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		found, err := c.listNode(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		for _, name := range found {
			names[name] = true
		}
		return err
	})
	return slices.Sorted(maps.Keys(names)), err
}

// listNode returns the names whose keys are on one node.
func (c *calls) listNode(ctx context.Context, node redis.Cmdable) ([]string, error) {
	pattern, narrow := c.layout.Glob()
	names := map[string]bool{} // SCAN may return a key twice
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		keys, next, err := node.ScanType(ctx, cursor, pattern, scanCount, "hash").Result()
		if err != nil {
			return nil, err
		}
		cursor = next
		var found []string
		var calls []*script.Call
		for _, key := range keys {
			if name, ok := c.layout.Name(key); ok {
				found = append(found, name)
				calls = append(calls, &script.Call{Script: inspectScript, Keys: []string{key}, Args: []any{"-"}})
			}
		}
		if len(calls) > 0 {
			script.Exec(ctx, c.rdb, calls)
		}
		for i, call := range calls {
			if call.Err != nil {
				return nil, call.Err
			}
			if listed(call.Reply, narrow) {
				names[found[i]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// ofRedisson matches the fields of Redisson.
var ofRedisson = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:-?[0-9]+$`)

// listed reports whether List has a hash, of which that is the reply of lua/inspect.lua.
// narrow means that no other hashes have such keys.
func listed(reply any, narrow bool) bool {
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return false
	}
	found, _ := parts[0].([]any)
	if len(found) < 4 || found[0] != int64(0) {
		return false
	}
	if narrow {
		return true
	}
	peers := len(found) > 4
	for i := 4; i < len(found); i += 2 {
		field := fmt.Sprint(found[i])
		if field == rlock.OfDlock {
			return true
		}
		peers = peers && ofRedisson.MatchString(field)
	}
	return peers
}
