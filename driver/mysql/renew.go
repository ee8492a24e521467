package mysql

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	renewMax = 5000       // renewals in one statement
	pairSize = 2*255 + 45 // bytes of a name and an ID in it, at most
	// renewTime is what each renewal adds to the time that its statement has. So a slow server does
	// not get all of them again while it is still at work on them.
	renewTime = 500 * time.Microsecond
)

// Renew implements [driver.Backend]. It sends one statement for the exclusive holders, and one for
// the others. Each is for at most five thousand requests, or as many as a packet has room for.
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
	b.inPieces(ctx, rs, res, locks, b.renewLocks)
	b.inPieces(ctx, rs, res, beside, b.renewBeside)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, done := range res {
		if m, is := b.requests.Find(rs[i].ID); is && done.Err == nil {
			m.Until = done.SentAt.Add(done.TTL)
		}
	}
	return res
}

// piece renews some requests, with one statement, and reads what became of those that it missed.
type piece func(*task, []driver.Request) ([]driver.Renewal, error)

// inPieces renews the requests at these places, as many at once as a packet has room for.
func (b *Backend) inPieces(ctx context.Context, rs []driver.Request, res []driver.Renewal, places []int, do piece) {
	for len(places) > 0 {
		if b.life.Over() {
			for _, at := range places {
				res[at].Err = driver.ErrClosed
			}
			return
		}
		n := min(len(places), renewMax, b.pool.room()/pairSize)
		t := b.newTask(true)
		t.free, t.many, t.timeout = true, n > 1, t.timeout+time.Duration(n)*renewTime
		part := make([]driver.Request, n)
		for i, at := range places[:n] {
			part[i] = rs[at]
		}
		done, err := run(ctx, t, b.life.Closed(), func() ([]driver.Renewal, error) { return b.split(t, part, do) })
		if tooLarge(err) && b.pool.room()/pairSize < n {
			continue
		}
		for i, at := range places[:n] {
			if err != nil {
				res[at].Err = err
			} else {
				res[at] = done[i]
			}
		}
		places = places[n:]
	}
}

// split renews requests. If another transaction has locked some of them, it renews the others.
func (b *Backend) split(t *task, rs []driver.Request, do piece) ([]driver.Renewal, error) {
	t.split = len(rs) > 1
	res, err := whole(t, rs, do)
	if t.split = false; len(rs) == 1 || kindOf(err, true) != collided {
		return res, err
	}
	stmt, keys := freeRequests, make([]string, len(rs))
	exclusive := rs[0].Mode == driver.Exclusive && !rs[0].Join()
	if exclusive {
		stmt = fill(freeLocks, ":prefix", b.prefix)
	}
	for i, r := range rs {
		if keys[i] = hexID(r.ID); exclusive {
			keys[i] = hexOf(r.Name)
		}
	}
	a, err2 := t.send(fill(stmt, ":keys", strings.Join(keys, ", ")))
	if err2 != nil {
		return nil, err2
	}
	free := map[string]bool{}
	for _, row := range a.rows {
		if len(row) == 1 {
			free["X'"+strings.ToLower(row[0])+"'"] = true
		}
	}
	var places []int
	var part []driver.Request
	res = make([]driver.Renewal, len(rs))
	for i, r := range rs {
		if res[i].Err = err; free[keys[i]] {
			places, part = append(places, i), append(part, r)
		}
	}
	if len(part) == 0 {
		return res, nil
	}
	done, err := whole(t, part, do)
	for i, at := range places {
		if err == nil {
			res[at] = done[i]
		} else {
			res[at].Err = err
		}
	}
	return res, nil
}

// errCut is the outcome for a request that is alive and has less time than the renewal gives: a
// KILL QUERY may cut an UPDATE short without an error.
var errCut = errors.New("the server cut the renewal short: try again")

// whole renews requests, and repeats that if it was cut short.
func whole(t *task, rs []driver.Request, do piece) (res []driver.Renewal, err error) {
	for range 3 {
		res, err = do(t, rs)
		if err != nil || !slices.ContainsFunc(res, func(r driver.Renewal) bool { return r.Err == errCut }) {
			break
		}
	}
	return res, err
}

// lives is the outcome of a renewal for a request, by the time left that was read after it.
func lives(left string, ttl time.Duration, sent time.Time) error {
	if us, _ := strconv.ParseInt(left, 10, 64); span(us) < ttl-time.Since(sent) {
		return errCut
	}
	return nil
}

// renewLocks renews exclusive holders. If the statement missed some of them, it reads which hold:
// those were renewed, since the statement renews nothing that has expired.
func (b *Backend) renewLocks(t *task, rs []driver.Request) ([]driver.Renewal, error) {
	names, ids, ttls := make([]string, len(rs)), make([]driver.ID, len(rs)), map[string]time.Duration{}
	for i, r := range rs {
		names[i], ids[i], ttls[r.ID.String()] = hexOf(r.Name), r.ID, r.TTL
	}
	list := strings.Join(names, ", ")
	a, err := t.send(fill(renewLocks, ":names", list, ":ids", hexIDs(ids), ":prefix", b.prefix))
	if err != nil {
		return nil, err
	}
	if a.affected == int64(len(rs)) {
		return renewals(rs, a.sent, nil), nil
	}
	now, err := t.find(fill(held, ":names", list, ":prefix", b.prefix), len(rs))
	if err != nil {
		return nil, err
	}
	state := map[string]error{}
	for _, row := range now.rows {
		left, _ := strconv.ParseInt(row[5], 10, 64)
		if id := strings.ToLower(row[1]); left > 0 && row[4] == "0" {
			state[id] = lives(row[5], ttls[id], a.sent)
		}
	}
	missing := false
	for _, r := range rs {
		if _, is := state[r.ID.String()]; !is {
			state[r.ID.String()], missing = driver.ErrLost, true
		}
	}
	if missing { // one that waits does not hold yet
		now, err := t.find(fill(standing, ":ids", hexIDs(ids)), len(rs))
		if err != nil {
			return nil, err
		}
		for _, row := range now.rows {
			if id := strings.ToLower(row[0]); state[id] != nil && row[2] == "0" && !strings.HasPrefix(row[3], "-") && row[1] == "waits" {
				state[id] = driver.ErrNotHeld
			}
		}
	}
	return renewals(rs, a.sent, state), nil
}

// renewBeside renews shared requests and joins.
func (b *Backend) renewBeside(t *task, rs []driver.Request) ([]driver.Renewal, error) {
	ids, ttls := make([]driver.ID, len(rs)), map[string]time.Duration{}
	granted := true // all of them are known to hold
	b.mu.Lock()
	for i, r := range rs {
		ids[i], ttls[r.ID.String()] = r.ID, r.TTL
		m, is := b.requests.Find(r.ID)
		granted = granted && is && m.Granted()
	}
	b.mu.Unlock()
	a, err := t.send(fill(renewRequests, ":ids", hexIDs(ids)))
	if err != nil {
		return nil, err
	}
	if granted && a.affected == int64(len(rs)) {
		return renewals(rs, a.sent, nil), nil
	}
	now, err := t.find(fill(standing, ":ids", hexIDs(ids)), len(rs))
	if err != nil {
		return nil, err
	}
	state := map[string]error{}
	for _, r := range rs {
		state[r.ID.String()] = driver.ErrLost
	}
	for _, row := range now.rows {
		switch id := strings.ToLower(row[0]); {
		case row[2] != "0" || strings.HasPrefix(row[3], "-"):
		case row[1] == "holds":
			state[id] = lives(row[3], ttls[id], a.sent)
		default:
			state[id] = driver.ErrNotHeld
		}
	}
	return renewals(rs, a.sent, state), nil
}

// renewals are the answers for requests, by the outcome of each. A nil state: all were renewed.
func renewals(rs []driver.Request, sent time.Time, state map[string]error) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	for i, r := range rs {
		if res[i].Err = state[r.ID.String()]; res[i].Err == nil {
			res[i] = driver.Renewal{TTL: r.TTL, SentAt: sent}
		}
	}
	return res
}
