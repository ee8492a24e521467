package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	renewMax = 5000 // renewals in one statement
	// renewTime is what each renewal adds to the time that its statement has. So a slow server does
	// not get all of them again while it is still at work on them.
	renewTime = 500 * time.Microsecond
)

// Renew implements [driver.Backend]. It sends one statement for the exclusive holders, and one for
// the others. Each is for at most five thousand requests.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	var locks, beside []int // places in rs
	for i := range rs {
		if rs[i].Mode == driver.Exclusive && !rs[i].Join() {
			locks = append(locks, i)
		} else {
			beside = append(beside, i)
		}
	}
	for _, places := range [][]int{locks, beside} {
		for some := range slices.Chunk(places, renewMax) {
			part := make([]driver.Request, len(some))
			for i, at := range some {
				part[i] = rs[at]
			}
			done, err := b.renew(ctx, part)
			for i, at := range some {
				if err != nil {
					res[at].Err = err
				} else {
					res[at] = done[i]
				}
			}
		}
	}
	if b.life.Over() {
		return res
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, done := range res {
		if m, is := b.requests.Find(rs[i].ID); is && done.Err == nil {
			m.Until = done.SentAt.Add(done.TTL)
		}
	}
	return res
}

// renew renews requests of one kind. It does not wait for rows that another transaction has locked
// before it has renewed the others.
func (b *Backend) renew(ctx context.Context, rs []driver.Request) ([]driver.Renewal, error) {
	if b.life.Over() {
		return nil, driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := b.newTask()
	t.timeout += time.Duration(len(rs)) * renewTime
	return run(ctx, t, b.life.Closed(), func() ([]driver.Renewal, error) {
		if len(rs) == 1 {
			res, _, err := b.renewOne(t, rs[0])
			return []driver.Renewal{res}, err
		}
		var res []driver.Renewal
		err := t.try(false, func() (err error) {
			res, _, err = b.renewSome(t, rs, "SKIP LOCKED")
			return err
		})
		if err != nil {
			return res, err
		}
		var places []int
		var locked []driver.Request
		for i, r := range rs {
			if res[i].Err == errLocked {
				places, locked = append(places, i), append(locked, r)
			}
		}
		if len(locked) == 0 {
			return res, nil
		}
		if again, _, err := b.renewSome(t, locked, ""); err == nil {
			for i, at := range places {
				res[at] = again[i]
			}
		}
		return res, nil
	})
}

// renewOne renews one request, and waits for its row. A renewal that misses the row, although the
// request holds, is sent again. It returns the token of an exclusive holder too.
func (b *Backend) renewOne(t *task, r driver.Request) (done driver.Renewal, token driver.Token, err error) {
	err = t.try(false, func() error {
		res, tokens, err := b.renewSome(t, []driver.Request{r}, "")
		if err != nil {
			return err
		}
		if done, token = res[0], tokens[r.ID]; done.Err == errLocked {
			return &kit.NotSent{Err: errLocked} // once more
		}
		return nil
	})
	return done, token, err
}

// errLocked is the outcome of a renewal whose row another transaction had locked.
var errLocked = errors.New("another transaction has locked the row: try again")

// renewSome sends a renewal once, and reads what became of the requests that it missed. It returns
// the tokens of exclusive holders.
func (b *Backend) renewSome(t *task, rs []driver.Request, skip string) ([]driver.Renewal, map[driver.ID]driver.Token, error) {
	names, ids := make([][]byte, len(rs)), make([][]byte, len(rs))
	for i := range rs {
		names[i], ids[i] = []byte(rs[i].Name), rs[i].ID[:]
	}
	stmt, args := renewRequests, []any{ids}
	if rs[0].Mode == driver.Exclusive && !rs[0].Join() {
		stmt, args = renewLocks, []any{b.prefix, names, ids}
	}
	tokens := map[driver.ID]driver.Token{}
	o := &op{sql: strings.Replace(stmt, ":skip", skip, 1), args: args, each: func(rows pgx.Rows) error {
		var id hexed
		var token int64
		err := rows.Scan(&id, &token)
		if err == nil {
			tokens[driver.ID(id)] = driver.Token(token)
		}
		return err
	}}
	sent, err := t.p.call(context.Background(), t.timeout, o)
	if err != nil {
		return nil, nil, err
	}
	seen := map[int]position{}
	if len(tokens) < len(rs) {
		_, err := t.p.call(context.Background(), t.timeout, &op{sql: look, args: []any{b.prefix, names, ids}, each: func(rows pgx.Rows) error {
			n, p, err := scanPosition(rows)
			seen[n-1] = p
			return err
		}})
		if err != nil {
			return nil, nil, err
		}
	}
	res := make([]driver.Renewal, len(rs))
	for i, r := range rs {
		if _, renewed := tokens[r.ID]; renewed {
			res[i] = driver.Renewal{TTL: r.TTL, SentAt: sent}
			continue
		}
		switch p := seen[i]; {
		case p.holder == r.ID && p.left > 0 && !p.broken:
			res[i].Err = errLocked
		case p.kind == "" || p.kind == "tombstone" || p.rowBroken || p.expires <= 0:
			res[i].Err = driver.ErrLost
		case p.kind == "request" && p.place > p.head:
			res[i].Err = driver.ErrNotHeld
		default:
			res[i].Err = errLocked
		}
	}
	return res, tokens, nil
}
