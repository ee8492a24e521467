package pair

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend]. Both sides renew at once.
func (p *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	var parts [2][]driver.Request
	qs := make([]*record, len(rs))
	p.mu.Lock()
	for k, r := range rs {
		qs[k] = p.requests[r.ID]
		for i := range parts {
			of := r
			if qs[k] != nil {
				of = qs[k].parts[i].r
			}
			parts[i] = append(parts[i], of)
		}
	}
	p.mu.Unlock()
	var ns [2][]driver.Renewal
	p.each(func(i int, b driver.Backend) { ns[i] = b.Renew(ctx, parts[i]) })
	result := make([]driver.Renewal, len(rs))
	for k, r := range rs {
		for i := range ns {
			if qs[k] != nil && ns[i][k].Err == nil {
				p.proved(qs[k], i, ns[i][k])
			}
			if ns[i][k].TTL == 0 {
				ns[i][k].TTL = r.TTL
			}
		}
		result[k] = p.renewal(qs[k], ns[0][k], ns[1][k])
	}
	return result
}

// renewal returns the one renewal that those of the two sides make.
func (p *Backend) renewal(q *record, first, second driver.Renewal) driver.Renewal {
	if q != nil {
		p.mu.Lock()
		if !q.parts[1].granted { // it waits at one of the two
			second = driver.Renewal{Err: driver.ErrNotHeld}
		}
		p.mu.Unlock()
	}
	for _, final := range []error{driver.ErrLost, nil, driver.ErrNotHeld} {
		for _, n := range []driver.Renewal{first, second} {
			switch {
			case n.Err == nil:
			case final == nil && !errors.Is(n.Err, driver.ErrNotHeld), final != nil && errors.Is(n.Err, final):
				return driver.Renewal{Err: n.Err}
			}
		}
	}
	ttl, sentAt := earlier(driver.Grant{TTL: first.TTL, SentAt: first.SentAt}, driver.Grant{TTL: second.TTL, SentAt: second.SentAt})
	return driver.Renewal{TTL: ttl, SentAt: sentAt}
}
