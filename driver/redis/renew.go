package redis

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// renewMax is how many renewals go in one pipeline.
const renewMax = 256

// Renew implements [driver.Backend]. It sends pipelines of at most 256 scripts, one for each
// request, one after the other. In a Cluster each node has pipelines of its own, so that a dead one
// costs no leases on the others.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	if b.life.Over() {
		for i := range res {
			res[i].Err = driver.ErrClosed
		}
		return res
	}
	calls := make([]*call, len(rs))
	for i := range rs {
		calls[i] = b.renewCall(&rs[i], rs[i].TTL.Microseconds())
	}
	go b.sendRenewals(ctx, calls)
	var why error // not nil: stop waiting for answers
	for i, c := range calls {
		if why == nil {
			select {
			case <-c.done:
				res[i] = b.renewed(ctx, &rs[i], c)
			case <-ctx.Done():
				why = ctx.Err()
			case <-b.life.Closed():
				why = driver.ErrClosed
			}
		}
		if why != nil {
			select {
			case <-c.done:
				res[i] = b.renewed(ctx, &rs[i], c)
			default:
				res[i].Err = why
			}
		}
	}
	return res
}

// renewCall returns a call that renews a request, or, if ttl is 0, checks that it holds. While its
// slot moves, the call may run with the hash alone, or with the set alone. After the set,
// [Backend.renewTogether] runs it with the hash too.
func (b *Backend) renewCall(r *driver.Request, ttl int64) *call {
	c := b.call(renewScript, r.Name, r.ID.String(), ttl, "")
	c.done = make(chan struct{})
	if r.Mode == driver.Shared || r.Join() {
		c.Parts = c.parts[:]
	}
	return c
}

// renewTogether runs the calls of renewCall. On a node without the hash, a renewal in the set
// returns the time at which the set was begun. It counts only if the hash, on the other node, has
// the same time.
func (b *Backend) renewTogether(ctx context.Context, calls []*call) {
	b.pipes.exec(ctx, calls)
	var halves, others []*call
	for _, c := range calls {
		reload(ctx, b.rdb, c.Err)
		if begun, _ := c.Reply.(int64); begun > 2 {
			other := newCall(c.Script, c.keys[0], c.keys[1], c.Common, []any{c.Args[0], c.Args[1], begun})
			other.Keys = other.parts[0]
			halves, others = append(halves, c), append(others, other)
		}
	}
	if len(others) == 0 {
		return
	}
	b.pipes.exec(ctx, others)
	for i, c := range halves {
		c.Reply, c.Err = others[i].Reply, others[i].Err
	}
}

// sendRenewals sends the calls, to all nodes at once, until ctx ends.
func (b *Backend) sendRenewals(ctx context.Context, calls []*call) {
	nodes := map[*redis.Client][]*call{}
	for _, c := range calls {
		master := masterOf(b.rdb, c.Keys[0])
		nodes[master] = append(nodes[master], c)
	}
	for _, queue := range nodes {
		go func() {
			for len(queue) > 0 && ctx.Err() == nil {
				n := min(len(queue), renewMax)
				sent := time.Now()
				for _, c := range queue[:n] {
					c.sent = sent
				}
				b.renewTogether(ctx, queue[:n])
				for _, c := range queue[:n] {
					close(c.done)
				}
				queue = queue[n:]
			}
		}()
	}
}

// proveHolds checks all holds of the client at the server, after messages to it may have been lost,
// and reports those that are lost. It renews nothing.
func (b *Backend) proveHolds(ctx context.Context, client driver.ID) {
	b.mu.Lock()
	lost := b.lost
	var ms []*ownRequest
	for m := range b.requests.All() {
		if m.Client == client && !m.held.IsZero() && m.Releases == 0 {
			ms = append(ms, m)
		}
	}
	b.mu.Unlock()
	if lost == nil || len(ms) == 0 {
		return
	}
	calls := make([]*call, len(ms))
	for i, m := range ms {
		calls[i] = b.renewCall(&m.OwnRequest.Request, 0)
	}
	go b.sendRenewals(ctx, calls)
	for i, c := range calls {
		select {
		case <-c.done:
		case <-ctx.Done():
			return
		}
		b.mu.Lock()
		n, answered := c.Reply.(int64)
		gone := answered && n == 0 && ms[i].Releases == 0 && b.requests.Has(ms[i])
		b.mu.Unlock()
		if gone {
			lost(ms[i].ID)
		}
	}
}

// renewed reads what lua/renew.lua returned, and records a hold that it proved.
func (b *Backend) renewed(ctx context.Context, r *driver.Request, c *call) driver.Renewal {
	n, _ := c.Reply.(int64)
	switch {
	case c.Err != nil:
		return driver.Renewal{Err: b.explain(ctx, r.Name, c.Err)}
	case n == 1:
		b.mu.Lock()
		defer b.mu.Unlock()
		if m, is := b.requests.Find(r.ID); is {
			m.Until = c.sent.Add(r.TTL)
		}
		return driver.Renewal{TTL: r.TTL, SentAt: c.sent}
	case n == 2:
		return driver.Renewal{Err: driver.ErrNotHeld}
	default:
		return driver.Renewal{Err: driver.ErrLost}
	}
}
