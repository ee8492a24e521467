package redlock

import (
	"context"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// renewMax is how many renewals go in one pipeline.
const renewMax = 256

// Renew implements [driver.Backend]. It calls all masters at once, each with pipelines of at most
// 256 scripts, one for each request.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, 0, len(rs))
	for some := range slices.Chunk(rs, renewMax) {
		res = append(res, b.renew(ctx, some)...)
	}
	return res
}

// renew is Renew for as many requests as fit in one pipeline.
func (b *Backend) renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	fail := func(err error) []driver.Renewal {
		for i := range res {
			res[i].Err = err
		}
		return res
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	timeout := b.o.NodeTimeout
	for i := range rs {
		timeout = min(timeout, b.timeout(rs[i].TTL))
	}
	sentAt := time.Now()
	answers, err := b.broadcast(timeout, func() []*script.Call {
		calls := make([]*script.Call, len(rs))
		for i := range rs {
			calls[i] = withoutTombstone(b.call(b.layout.renew, rs[i].Name, rs[i].ID.String(), millis(rs[i].TTL)))
		}
		return calls
	}, func(answer) {})
	if err != nil {
		return fail(err)
	}
	held, gone, seen := make([]int, len(rs)), make([]int, len(rs)), make([]answer, 0, len(b.masters))
	err = collect(ctx, b, len(b.masters), timeout, answers, func(a answer) bool {
		certain := true
		seen = append(seen, a)
		for i, c := range a.calls {
			switch n, _ := c.Reply.(int64); {
			case c.Err != nil:
			case n == 1:
				held[i]++
			default:
				gone[i]++
			}
			certain = certain && (held[i] >= b.majority || b.impossible(gone[i]))
		}
		return certain
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range rs {
		switch {
		case held[i] >= b.majority:
			res[i] = driver.Renewal{TTL: rs[i].TTL, SentAt: sentAt}
			if q := b.requests[rs[i].ID]; q != nil {
				q.until = sentAt.Add(rs[i].TTL)
			}
		case b.impossible(gone[i]):
			res[i].Err = driver.ErrLost
		case err != nil:
			res[i].Err = err
		default:
			why := b.unanswered(timeout)
			for _, a := range seen {
				why.record(a.master, b.explain(rs[i].Name, a.calls[i].Err))
			}
			res[i].Err = why
		}
	}
	return res
}
