package redisson

import (
	"bytes"
	"cmp"
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

// Members implements [adapt.Sharer].
func (c *calls) Members(ctx context.Context, name string) ([]*driver.Entry, error) {
	key := c.layout.Key(name)
	reply, err := c.run(ctx, false, inspectScript, []string{key}, "-")
	if err != nil {
		return nil, err
	}
	found, is := reply.([]any)
	if !is {
		return nil, unexpected(reply)
	}
	es, _, err := parseHolders(key, found)
	if c.layout.Counter(key) == "" {
		for _, e := range es {
			e.Token = 0 // that of a client with other parameters
		}
	}
	return es, err
}

// parseHolders reads what the scripts return of holders: the members, in the order in which they
// came, or one peer; and how long the lock is held, 0 if that has no end. If the key is no lock,
// the error says so.
func parseHolders(key string, reply []any) (es []*driver.Entry, left time.Duration, err error) {
	switch {
	case len(reply) == 0:
		return nil, 0, nil
	case reply[0] == int64(-2) && len(reply) == 2:
		return nil, 0, fmt.Errorf("%w: the key %q is no lock of Redisson, but of type %v, and is not changed; use another name, prefix or key (%s)",
			driver.ErrUnsupported, key, reply[1], rlock.Page)
	case reply[0] != int64(0) || len(reply) < 4 || len(reply)%2 != 0:
		return nil, 0, unexpected(reply)
	}
	ms, is := reply[1].(int64)
	clock, err := strconv.ParseInt(fmt.Sprint(reply[2]), 10, 64)
	if !is || err != nil {
		return nil, 0, unexpected(reply)
	}
	left = max(0, time.Duration(ms)*time.Millisecond)
	var peers []string
	for fields := reply[4:]; len(fields) > 0; fields = fields[2:] {
		field, value := fmt.Sprint(fields[0]), fmt.Sprint(fields[1])
		if e := readMember(field, value, clock); e != nil {
			es = append(es, e)
			continue
		}
		if value != "1" {
			field += " (count " + value + ")"
		}
		peers = append(peers, field)
	}
	if len(es) > 0 {
		slices.SortFunc(es, func(a, b *driver.Entry) int {
			return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Token, b.Token), bytes.Compare(a.ID[:], b.ID[:]))
		})
		return es, left, nil
	}
	e := &driver.Entry{Left: left, Foreign: true}
	if e.Label = strings.Join(peers, ", "); len(peers) == 0 {
		e.Label = fmt.Sprintf("a hash of %v fields", reply[3])
	}
	return []*driver.Entry{e}, left, nil
}

// readMember reads the field of a member. It returns nil for any other field.
func readMember(field, text string, clock int64) *driver.Entry {
	id, is := strings.CutPrefix(field, rlock.OfMember)
	f := strings.SplitN(text, " ", 9)
	if !is || len(f) != 9 {
		return nil
	}
	var n [5]int64 // since, TTL, expiry, token, length of the field
	e := &driver.Entry{}
	errs := []error{e.ID.UnmarshalText([]byte(id)), e.Owner.UnmarshalText([]byte(f[1])), e.Client.UnmarshalText([]byte(f[2]))}
	for i := range n {
		var err error
		n[i], err = strconv.ParseInt(f[3+i], 10, 64)
		errs = append(errs, err)
	}
	if errors.Join(errs...) != nil || n[4] < 0 || int64(len(f[8])) <= n[4] {
		return nil
	}
	if strings.HasPrefix(f[0], "s") {
		e.Mode = driver.Shared
	}
	ms := func(n int64) time.Duration { return max(0, time.Duration(n)*time.Millisecond) }
	e.Fixed, e.Token, e.Label = strings.HasSuffix(f[0], "f"), driver.Token(n[3]), f[8][n[4]+1:]
	e.TTL, e.Age, e.Left = ms(n[1]), ms(clock-n[0]), ms(n[2]-clock)
	return e
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
	found, _ := reply.([]any)
	if len(found) < 4 || found[0] != int64(0) {
		return false
	}
	if narrow {
		return true
	}
	peers := len(found) > 4
	for i := 4; i < len(found); i += 2 {
		field := fmt.Sprint(found[i])
		if strings.HasPrefix(field, rlock.OfMember) {
			return true
		}
		peers = peers && ofRedisson.MatchString(field)
	}
	return peers
}
