package mysql

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	renewMax = 10_000 // renewals in one statement
	// that each adds to the time of its statement: a slow server is not asked for all of them once
	// more
	renewTime = 500 * time.Microsecond
)

// Renew implements [driver.Backend]: one statement for each TTL, and each ten thousand requests.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	order := make([]int, len(rs)) // by TTL, then ID: so two statements lock rows in the same order
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(rs[i].TTL, rs[j].TTL), slices.Compare(rs[i].ID[:], rs[j].ID[:]))
	})
	for len(order) > 0 {
		ttl, n := rs[order[0]].TTL, 1
		for n < min(len(order), renewMax) && rs[order[n]].TTL == ttl {
			n++
		}
		b.renew(ctx, rs, order[:n], ttl, res)
		order = order[n:]
	}
	return res
}

// renew renews those requests, all of one TTL.
func (b *Backend) renew(ctx context.Context, rs []driver.Request, which []int, ttl time.Duration, res []driver.Renewal) {
	ids := make([]string, len(which))
	for i, at := range which {
		ids[i] = rs[at].ID.String()
	}
	c := newCall("renew", bin(`["`+strings.Join(ids, `","`)+`"]`), len(ids), ttl)
	c.time += time.Duration(len(ids)) * renewTime
	err := b.alone(ctx, c)
	if err != nil {
		for _, at := range which {
			res[at].Err = explain(err)
		}
		return
	}
	stands := map[string]string{} // by ID: is it waiting? 1 or 0
	for _, row := range c.sets[0] {
		stands[row[0]] = row[1]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, at := range which {
		waits, is := stands[ids[i]]
		switch {
		case waits == "1":
			res[at].Err = driver.ErrNotHeld
		case !is && stands["all"] == "":
			res[at].Err = driver.ErrLost
		default:
			res[at] = driver.Renewal{TTL: ttl, SentAt: c.sent}
			if m := b.mine[rs[at].ID]; m != nil {
				m.until = c.sent.Add(ttl)
			}
		}
	}
}

// alone sends a call that concerns no single name.
func (b *Backend) alone(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := b.ctx.Err(); err != nil {
		return driver.ErrClosed
	}
	go c.carry(b.pool, false)
	return c.wait(ctx, b.pool, b.stop)
}
