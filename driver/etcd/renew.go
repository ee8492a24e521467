package etcd

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend]: a keep-alive and an audit for each lease, and one read for
// all, all sent at once.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
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
	under := map[*lease][]int{}
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return fail(driver.ErrClosed)
	}
	now := time.Now()
	for i, r := range rs {
		rq := b.requests[r.ID]
		switch {
		case rq == nil, rq.ended, !rq.until.IsZero() && (rq.lease == nil || now.After(rq.until)):
			res[i].Err = driver.ErrLost
		case rq.until.IsZero():
			res[i].Err = driver.ErrNotHeld
		default:
			under[rq.lease] = append(under[rq.lease], i)
		}
	}
	b.mu.Unlock()
	var ls []*lease
	for l := range under {
		ls = append(ls, l)
	}
	for n, p := range b.leases.prove(ctx, ls) {
		l := ls[n]
		b.mu.Lock()
		for _, i := range under[l] {
			res[i] = renewalOf(b.requests[rs[i].ID], l, p)
		}
		b.mu.Unlock()
	}
	return res
}

// renewalOf returns the renewal of a request after a proof of its lease. The backend's mu is held.
func renewalOf(rq *ownRequest, l *lease, p proof) driver.Renewal {
	switch {
	case rq == nil, rq.ended, rq.missing, rq.lease != l, !time.Now().Before(rq.until):
		return driver.Renewal{Err: driver.ErrLost}
	case p.err != nil:
		return driver.Renewal{Err: p.err}
	}
	if until := p.since.Add(l.ttl); until.After(rq.until) {
		rq.until = until
	}
	return driver.Renewal{TTL: l.ttl, SentAt: p.since}
}
