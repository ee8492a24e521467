package mysql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	renewMax = 10_000 // renewals in one statement
	idSize   = 35     // of an ID in it
	// renewTime is what each renewal, or sign of life, adds to the time that its statement has. So
	// a slow server is not asked for all of them again while it is at it.
	renewTime = 500 * time.Microsecond
)

// Renew implements [driver.Backend]. It sends one statement for each TTL, and each ten thousand
// requests, or as many as a packet has room for.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	if b.life.Over() {
		for i := range res {
			res[i].Err = driver.ErrClosed
		}
		return res
	}
	order := make([]int, len(rs)) // by TTL, then ID: so two statements lock rows in the same order
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(rs[i].TTL, rs[j].TTL), slices.Compare(rs[i].ID[:], rs[j].ID[:]))
	})
	most := min(renewMax, b.pool.room()/idSize)
	for len(order) > 0 {
		ttl, n := rs[order[0]].TTL, 1
		for n < min(len(order), most) && rs[order[n]].TTL == ttl {
			n++
		}
		err := b.renew(ctx, rs, order[:n], ttl, res)
		if less := b.pool.room() / idSize; tooLarge(err) && less < n {
			most = less
			continue
		}
		order = order[n:]
	}
	return res
}

// renew renews the requests at these places, all of one TTL.
func (b *Backend) renew(ctx context.Context, rs []driver.Request, which []int, ttl time.Duration, res []driver.Renewal) error {
	ids := make([]string, len(which))
	for i, at := range which {
		ids[i] = rs[at].ID.String()
	}
	c := newCall("renew", quoted(`["`+strings.Join(ids, `","`)+`"]`), len(ids), ttl)
	c.timeout += time.Duration(len(ids)) * renewTime
	if err := b.sendAlone(ctx, c); err != nil {
		for _, at := range which {
			res[at].Err = explain(err)
		}
		return err
	}
	waits, all, err := parseRenewals(c.sets)
	if err != nil {
		for _, at := range which {
			res[at].Err = err
		}
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, at := range which {
		waiting, stands := waits[ids[i]]
		switch {
		case waiting == "1":
			res[at].Err = driver.ErrNotHeld
		case !stands && !all:
			res[at].Err = driver.ErrLost
		default:
			res[at] = driver.Renewal{TTL: ttl, SentAt: c.sent}
			if m, is := b.requests.Find(rs[at].ID); is {
				m.Until = c.sent.Add(ttl)
			}
		}
	}
	return nil
}

// parseRenewals reads the answer to dlock_renew: that all were renewed, or, by ID, of what stands,
// 1 if it waits and 0 if it was renewed.
func parseRenewals(sets results) (waits map[string]string, all bool, err error) {
	if len(sets) == 1 && len(sets[0]) == 1 && sets[0][0][0] == "all" {
		return nil, true, nil
	}
	if len(sets) != 2 || len(sets[0]) != 1 || len(sets[0][0]) != 2 || sets[0][0][0] != "stand" {
		return nil, false, fmt.Errorf("unexpected answer %q", sets)
	}
	waits = map[string]string{}
	for _, row := range sets[1] {
		waits[row[0]] = row[1]
	}
	return waits, false, whole(sets[1], sets[0][0][1])
}
