package zookeeper

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// Renew implements [driver.Backend]: one transaction for each session, and one for each fixed
// request.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	reqs := make([]*ownRequest, len(rs)) // nil: it has its result
	proved := map[*session]error{}
	var kept []int // the requests that have kept nodes
	b.mu.Lock()
	for i, r := range rs {
		if b.life.Over() {
			res[i].Err = driver.ErrClosed
			continue
		}
		req, is := b.requests.Find(r.ID)
		switch {
		case !is:
			res[i].Err = driver.ErrLost
		case req.isKept():
			kept = append(kept, i)
			fallthrough
		case req.granted:
			if reqs[i] = req; req.s != nil {
				proved[req.s] = nil
			}
		default:
			res[i].Err = driver.ErrNotHeld
		}
	}
	b.mu.Unlock()
	b.proveAll(ctx, proved, reqs)
	_ = each(len(kept), func(k int) error {
		i := kept[k]
		p, err := b.renewKept(ctx, reqs[i])
		if p.Err = b.explain(ctx, err); err != nil {
			p = driver.Renewal{Err: p.Err}
		}
		res[i], reqs[i] = p, nil
		return nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, req := range reqs {
		if req == nil {
			continue
		}
		switch err := proved[req.s]; {
		case req.gone || req.broken || errors.Is(err, conn.ErrEnded) || errors.Is(err, zk.ErrSessionExpired):
			res[i].Err = driver.ErrLost
		case err != nil:
			res[i].Err = b.explain(ctx, err)
		default:
			g := req.s.grantOf(req)
			res[i] = driver.Renewal{TTL: g.TTL, SentAt: g.SentAt}
		}
	}
	return res
}

// proveAll proves the sessions, and sets the error of each. A few requests are all checked with
// their sessions; of many, each proof checks the next in turn.
func (b *Backend) proveAll(ctx context.Context, errs map[*session]error, reqs []*ownRequest) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	prove := func(s *session) {
		var some []*ownRequest
		if len(reqs) <= b.checks {
			for _, req := range reqs {
				if req != nil && req.s == s {
					some = append(some, req)
				}
			}
		}
		err := s.prove(ctx, some...)
		mu.Lock()
		defer mu.Unlock()
		errs[s] = err
	}
	var ss []*session
	for s := range errs {
		ss = append(ss, s)
	}
	if len(ss) == 1 {
		prove(ss[0])
		return
	}
	for _, s := range ss {
		wg.Go(func() { prove(s) })
	}
	wg.Wait()
}
