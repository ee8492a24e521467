package mysql

import (
	"context"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	maxBatch = 64   // calls in one statement
	callSize = 4096 // bytes that each takes there, at most: with the longest names and label
)

// batch sends calls of one kind. A call that finds none under way is sent at once. Calls that come
// meanwhile travel together: the server then parses, commits and answers once for all of them.
type batch struct {
	pool *pool
	line kit.Line[*call]
}

func newBatch(p *pool, run func([]*call)) *batch {
	return &batch{pool: p, line: kit.Line[*call]{
		Alone:    func(_ context.Context, c *call) bool { run([]*call{c}); return true },
		Together: run,
		Fits:     func(cs []*call, _ *call) bool { return len(cs) < min(maxBatch, p.room()/callSize) },
		Few:      1, Most: 1,
	}}
}

// do sends a call, alone or together with others, and returns when that is over.
func (b *batch) do(t *task, r driver.Request, c *call) *call {
	c.t, c.r = t, r
	b.line.Do(context.Background(), nil, false, c)
	return c
}

// make is do for a call that may make the request.
func (b *batch) make(t *task, r driver.Request) *call {
	t.made.Store(true) // before left is read: see task.sendUntil
	t.doubt.Add(1)
	c := b.do(t, r, &call{})
	if !c.open && outcomeOf(c.err, b.pool.reached()) != kit.Unknown {
		t.doubt.Add(-1)
	}
	return c
}

// the answers to take that are not tokens
const (
	isHeld   = 1 // by another request
	isQueued = 2 // there are exclusive requests beside it
	isShared = 3 // there may be any requests beside it
	isLost   = 4 // it held, and does not any more
	isBehind = 5 // it is held, and there are exclusive requests beside it
	lastCode = 5
)

// call is a call that may travel together with others.
type call struct {
	t        *task
	r        driver.Request
	answered bool
	open     bool     // of a take: it was executed, and its outcome was not read
	code     uint64   // of a take
	some     bool     // of a give: some of those sent together were released, perhaps this one
	lock     bool     // of a look: it waits for a grant that is not committed yet
	row      []string // of a look
	sent     time.Time
	err      error
}

// take tries to take a lock that is free.
func (b *Backend) take(t *task, r driver.Request) (code uint64, sent time.Time, err error) {
	c := b.takes.make(t, r)
	if c.answered {
		return c.code, c.sent, c.err
	}
	a, err := t.make(b.takeOf([]*call{c}))
	if c.open && err == nil { // the answer covers the first copy too
		t.doubt.Add(-1)
	}
	return uint64(a.id), a.sent, err
}

func (b *Backend) takeOf(cs []*call) string {
	rows := make([]string, len(cs))
	for i, c := range cs {
		rows[i] = b.about(takeRow, &c.r)
	}
	return fill(take, ":rows", strings.Join(rows, ", "))
}

// takeAll sends takes in one statement, and then reads which requests hold.
func (b *Backend) takeAll(cs []*call) {
	a, cs := b.together(cs, b.takeOf)
	if len(cs) == 1 && a.id > 0 {
		cs[0].answered, cs[0].code, cs[0].sent = true, uint64(a.id), a.sent
		return
	}
	if len(cs) < 2 {
		return
	}
	for _, c := range cs {
		c.open = true
	}
	rows, err := b.pool.call(context.Background(), callTimeout, b.namesOf(held, cs), false)
	if err != nil {
		return // each is sent again
	}
	for _, row := range rows.rows {
		name, _ := hex.DecodeString(row[0])
		for _, c := range cs {
			if c.r.Name == string(name) {
				c.answered, c.open = true, false
				c.code, c.sent = takenBy(row, c.r.ID), a.sent
			}
		}
	}
}

// takenBy is the answer to a take, from a row of held.
func takenBy(row []string, id driver.ID) uint64 {
	n := func(i int) int64 { n, _ := strconv.ParseInt(row[i], 10, 64); return n }
	switch mine := strings.EqualFold(row[1], id.String()); {
	case mine && n(5) > 0 && n(4) == 0:
		return uint64(n(2))
	case mine:
		return isLost
	case n(3) == 1 && n(5) > 0:
		return isBehind
	}
	return uint64(n(3)) + 1
}

// give releases a lock that has no waiters. It reports false if it has, or if the outcome is not
// known. A request that is not in the record does not travel with others: if the server released
// only some of them, the record is needed to find out which.
func (b *Backend) give(t *task, r driver.Request) bool {
	b.mu.Lock()
	_, own := b.requests.Find(r.ID)
	b.mu.Unlock()
	if !own {
		return false
	}
	c := b.gives.do(t, r, &call{})
	if c.some || outcomeOf(c.err, b.pool.reached()) == kit.Unknown {
		t.copies++
	}
	return c.answered
}

func (b *Backend) giveAll(cs []*call) {
	a, cs := b.together(cs, func(cs []*call) string { return b.namesOf(give, cs) })
	for _, c := range cs {
		c.answered = a.affected == int64(len(cs))
		c.some = a.affected > 0 && !c.answered
	}
}

// arrive adds an exclusive request to those that wait.
func (b *Backend) arrive(t *task, r driver.Request) error {
	c := b.arrivals.make(t, r)
	if c.answered {
		return c.err
	}
	_, err := t.make(b.arriveOf([]*call{c}))
	return err
}

func (b *Backend) arriveOf(cs []*call) string {
	rows := make([]string, len(cs))
	for i, c := range cs {
		rows[i] = b.about(arriveRow, &c.r)
	}
	return fill(arrive, ":rows", strings.Join(rows, ", "))
}

// arriveAll sends arrivals in one statement.
func (b *Backend) arriveAll(cs []*call) {
	_, cs = b.together(cs, b.arriveOf)
	for _, c := range cs {
		c.answered = true
	}
}

// look reads what a waiting request has to know.
func (b *Backend) look(t *task, r *driver.Request, lock bool) (position, error) {
	c := b.looks.do(t, *r, &call{lock: lock})
	if !c.answered || c.err == nil && c.row == nil {
		a, err := t.find(b.lookOf([]*call{c}), 1)
		if err != nil {
			return position{}, err
		}
		c.err, c.sent = nil, a.sent
		if len(a.rows) > 0 {
			c.row = a.rows[0]
		}
	}
	if c.err != nil || c.row == nil {
		return position{}, c.err
	}
	p, err := parsePosition(c.row)
	p.sent = c.sent
	return p, err
}

func (b *Backend) lookOf(cs []*call) string {
	parts := make([]string, len(cs))
	for i, c := range cs {
		lock := ""
		if c.lock {
			lock = "LOCK IN SHARE MODE"
		}
		parts[i] = b.about(fill(look, ":number", strconv.Itoa(i), ":lock", lock), &c.r)
	}
	return strings.Join(parts, " UNION ALL ")
}

// lookAll sends looks in one statement.
func (b *Backend) lookAll(cs []*call) {
	a, cs := b.together(cs, b.lookOf)
	for _, c := range cs {
		c.answered, c.sent = true, a.sent
	}
	for _, row := range a.rows {
		if i, err := strconv.Atoi(row[0]); err == nil && i < len(cs) {
			cs[i].row = row
		}
	}
}

// together sends one statement for calls, in the order of names, so that two such statements do not
// wait for each other. It returns the calls that it was sent for, and none if it failed.
func (b *Backend) together(all []*call, stmt func([]*call) string) (answer, []*call) {
	p := b.pool
	p.enter(true)
	defer p.limiter.Exit()
	cs := slices.DeleteFunc(slices.Clone(all), func(c *call) bool { return c.t.left.Load() })
	if len(cs) == 0 {
		return answer{}, nil
	}
	slices.SortFunc(cs, func(x, y *call) int { return strings.Compare(x.r.Name, y.r.Name) })
	a, err := p.call(context.Background(), callTimeout, stmt(cs), len(cs) > 1)
	if err == nil {
		return a, cs
	}
	for _, c := range cs {
		c.err = err
		if outcomeOf(err, p.reached()) == kit.Answered {
			c.answered = len(cs) == 1 // else another call may be the cause
		}
	}
	return answer{}, nil
}

func (b *Backend) namesOf(stmt string, cs []*call) string {
	names, ids := make([]string, len(cs)), make([]driver.ID, len(cs))
	for i, c := range cs {
		names[i], ids[i] = hexOf(c.r.Name), c.r.ID
	}
	return fill(stmt, ":names", strings.Join(names, ", "), ":ids", hexIDs(ids), ":prefix", b.prefix)
}
