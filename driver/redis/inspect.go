package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// scanCount is how many keys one SCAN looks at.
const scanCount = 1000

// Inspect implements [driver.Backend]. It reads a long queue in several calls. A request that is
// granted between two of them is shown as holding, and one that leaves may still be shown.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	var r reading
	for from := ""; ; {
		reply, err := b.ask(ctx, name, b.call(inspectScript, name, from))
		if err != nil {
			return driver.Queue{}, err
		}
		if from, err = r.add(name, reply); err != nil {
			return driver.Queue{}, err
		}
		if from == "" {
			return r.queue(), nil
		}
	}
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	// The first call may be repeated without changing its answer: whether there is a hold to end.
	if n, err := b.breakAll(ctx, name, t, "0"); err != nil || n == 0 {
		return cmp.Or(err, driver.ErrNotHeld)
	}
	if !force {
		return nil
	}
	// There was a hold. If the second call finds none, the hold has ended since it was marked.
	_, err := b.breakAll(ctx, name, t, "1")
	return err
}

// breakAll marks or removes the requests with that token, in several calls, and returns how many it
// found in the first pass. Between two calls a request may join in a part that was already read, so
// breakAll makes passes until one has changed nothing. Then no request can join any more.
func (b *Backend) breakAll(ctx context.Context, name string, t driver.Token, how string) (found int64, err error) {
	for pass := 1; ; pass++ {
		from, pieces, changes := "", 0, int64(0)
		for from != "" || pieces == 0 {
			c := b.call(breakScript, name, strconv.FormatUint(uint64(t), 10), how, from)
			c.rare = true
			reply, err := b.ask(ctx, name, c)
			if err != nil {
				return found, err
			}
			l, ok := reply.([]any)
			if !ok || len(l) != 3 {
				return found, fmt.Errorf("unexpected reply %v", reply)
			}
			n, _ := l[0].(int64)
			m, _ := l[1].(int64)
			from, _ = l[2].(string)
			pieces++
			changes += m
			if pass == 1 {
				found += n
			}
		}
		if pieces == 1 || changes == 0 {
			return found, nil
		}
	}
}

// List implements [driver.Lister]. It reads the keys with SCAN, on all masters of a Cluster, and
// checks whether requests stand there, since most keys only remember a token.
func (b *Backend) List(ctx context.Context) ([]string, error) {
	if b.life.Over() {
		return nil, driver.ErrClosed
	}
	return listNodes(ctx, b.rdb, b.life.Closed(), b.listNode)
}

// listNode passes to take the names that have requests and whose keys are on one node. It reads the
// keys in several calls, and checks the names after each.
func (b *Backend) listNode(ctx context.Context, c redis.Cmdable, take func([]string)) error {
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		if err := ctx.Err(); err != nil {
			return err
		}
		keys, next, err := c.Scan(ctx, cursor, b.space.Pattern(), scanCount).Result()
		if err != nil {
			return b.explain(ctx, "*", err)
		}
		cursor = next
		var names []string
		var calls []*call
		for _, key := range keys {
			if name, ok := b.space.Name(key); ok {
				names, calls = append(names, name), append(calls, b.call(usedScript, name))
			}
		}
		if len(calls) == 0 {
			continue
		}
		b.pipes.exec(ctx, calls)
		used := names[:0]
		for i, c := range calls {
			if c.Err != nil && fault.Transient(c.Err) { // the name is on its way to another node
				c = b.call(usedScript, names[i])
				c.Reply, c.Err = b.pipes.run(ctx, b.life.Closed(), c)
			}
			if c.Err != nil {
				return b.explain(ctx, names[i], c.Err)
			}
			if n, _ := c.Reply.(int64); n == 1 {
				used = append(used, names[i])
			}
		}
		take(used)
	}
	return nil
}

// reading is the part of a queue that was read so far.
type reading struct {
	holding, waiting []*driver.Entry
	holds            map[driver.ID]bool
}

// add reads the reply of lua/inspect.lua, and returns where the next call continues.
func (r *reading) add(name string, reply any) (more string, err error) {
	l, ok := reply.([]any)
	if !ok || len(l) != 4 {
		return "", fmt.Errorf("unexpected reply %v", reply)
	}
	if r.holds == nil {
		r.holds = map[driver.ID]bool{}
	}
	now, _ := l[0].(int64)
	for i, part := range l[1:3] {
		members, _ := part.([]any)
		for _, m := range members {
			member, _ := m.(string)
			e, err := parseEntry(name, member, now)
			switch {
			case err != nil:
				return "", err
			case i == 1:
				r.waiting = append(r.waiting, e)
			case !r.holds[e.ID]: // a renewal between two calls may show it twice
				r.holds[e.ID] = true
				r.holding = append(r.holding, e)
			}
		}
	}
	more, _ = l[3].(string)
	return more, nil
}

// queue returns the queue.
func (r *reading) queue() (q driver.Queue) {
	// Holders come in no order. Waiters come in their order, and have no tokens.
	slices.SortStableFunc(r.holding, func(x, y *driver.Entry) int { return cmp.Compare(x.Token, y.Token) })
	for _, e := range slices.Concat(r.holding, r.waiting) {
		switch {
		case e.Token == 0 && r.holds[e.ID]: // it was granted between two calls
		case e.Join():
			q.Joins = append(q.Joins, e)
		default:
			q.Arrivals = append(q.Arrivals, e)
		}
	}
	return q
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
	if f[0][0] != 'w' { // a waiter has its place there
		e.Token = driver.Token(n[1])
	}
	e.Left, e.Age = time.Duration(n[2]-now)*time.Microsecond, time.Duration(now-n[4])*time.Microsecond
	e.Fixed, e.Broken = strings.Contains(f[8], "fixed"), strings.Contains(f[8], "broken")
	err := errors.Join(e.ID.UnmarshalText([]byte(f[0][1:])), e.Owner.UnmarshalText([]byte(f[3])), e.Client.UnmarshalText([]byte(f[7])))
	return e, err
}
