package redis

import (
	"context"
	_ "embed"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var (
	//go:embed lua/redlock_renew.lua
	redlockRenewLua string

	redlockRenew = newScript(redlockLua + redlockRenewLua)
)

// Renew implements [driver.Backend]. It sends each master pipelines of at most 256 scripts, one for
// each request, and all masters at once.
func (b *Redlock) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, 0, len(rs))
	for some := range slices.Chunk(rs, renewMax) {
		res = append(res, b.renew(ctx, some)...)
	}
	return res
}

func (b *Redlock) renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
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
	since := time.Now()
	answers, err := b.ask(timeout, func() []*call {
		cs := make([]*call, len(rs))
		for i := range rs {
			cs[i] = b.call(redlockRenew, rs[i].Name, rs[i].ID.String(), millis(rs[i].TTL))
		}
		return cs
	}, func(answer) {})
	if err != nil {
		return fail(err)
	}
	held, gone, heard := make([]int, len(rs)), make([]int, len(rs)), make([]answer, 0, len(b.nodes))
	err = gather(ctx, b, len(b.nodes), timeout, answers, func(a answer) bool {
		certain := true
		heard = append(heard, a)
		for i, c := range a.calls {
			switch n, _ := c.reply.(int64); {
			case c.err != nil:
			case n == 1:
				held[i]++
			default:
				gone[i]++
			}
			certain = certain && (held[i] >= b.need || b.hopeless(gone[i]))
		}
		return certain
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range rs {
		switch {
		case held[i] >= b.need:
			res[i] = driver.Renewal{TTL: rs[i].TTL, SentAt: since}
			if m := b.ballots[rs[i].ID]; m != nil {
				m.until = since.Add(rs[i].TTL)
			}
		case b.hopeless(gone[i]):
			res[i].Err = driver.ErrLost
		case err != nil:
			res[i].Err = err
		default:
			why := b.silence(timeout)
			for _, a := range heard {
				why.said(a.node, b.explain(rs[i].Name, a.calls[i].err))
			}
			res[i].Err = why
		}
	}
	return res
}

// hopeless reports whether no majority is left without so many masters.
func (b *Redlock) hopeless(without int) bool { return len(b.nodes)-without < b.need }

// Release implements [driver.Backend]. It returns when a majority has answered; the others get it
// in the background.
func (b *Redlock) Release(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	back := make(chan returned, len(b.nodes))
	asked, removed, absent := 0, 0, 0
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	m := b.ballots[r.ID]
	if m == nil { // whoever asked for it: it may stand anywhere
		m = &ballot{r: r, votes: slices.Repeat([]vote{yes}, len(b.nodes))}
	}
	m.over = true
	for i, v := range m.votes {
		switch {
		case r.Uncertain || v == yes || v == maybe:
			b.owe(i, m, r.Uncertain || v == maybe, back)
			asked++
		case v == left: // by an earlier copy of this release
			removed++
		case v == none:
			absent++
		}
	}
	b.mu.Unlock()
	timeout := b.timeout(r.TTL)
	why := b.silence(timeout)
	certain := func() bool { return removed >= b.need || b.hopeless(absent) }
	var err error
	if !certain() {
		err = gather(ctx, b, asked, timeout, back, func(a returned) bool {
			why.said(a.node, b.explain(r.Name, a.err))
			switch {
			case a.err != nil:
			case a.removed:
				removed++
			default:
				absent++
			}
			return certain()
		})
	}
	switch {
	case certain():
	case err != nil:
		return err
	default:
		return why
	}
	b.mu.Lock()
	delete(b.ballots, r.ID)
	b.mu.Unlock()
	if removed < b.need {
		return driver.ErrLost
	}
	return nil
}
