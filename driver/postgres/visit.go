package postgres

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// action is what a call does to the queue of a name.
type action int

const (
	checks  action = iota // writes what is due there
	arrives               // adds a request at the end
	joins                 // adds a request to a hold
	leaves                // removes a request
)

// call is a call that may travel together with others.
type call struct {
	t    *task
	r    driver.Request
	do   action    // of a visit
	from driver.ID // of a join: the request that it was found to depend on

	entombs bool          // of one that leaves: late copies of its Acquire are to do nothing
	ended   bool          // … by force, which its client is to read
	lasts   time.Duration // … for how long

	answered bool
	token    driver.Token // of a take; 0: it does not hold
	seen     seen         // … and what was seen of the lock
	p        position     // after a visit, or of a look; zero: the lock has no row
	alive    bool         // of one that leaves: it was there, and had not ended
	found    bool         // … it was there
	broken   bool         // … and an operator had ended it
	sent     time.Time
	err      error
}

// maxVisits is how many visits a client has under way, at most.
const maxVisits = 16

// visits are the visits of a client to the queues of names. For each name one is under way at a
// time; the calls that come meanwhile share the next one.
type visits struct {
	b  *Backend
	mu sync.Mutex
	by map[string]*visitor
}

// visitor is the calls for one name. It exists while there are any.
type visitor struct {
	line  kit.Line[*call]
	calls int
}

// visit does what the call wants, in one transaction that has locked the lock's row, and returns
// when that is over.
func (b *Backend) visit(c *call) error {
	v := &b.visits
	v.mu.Lock()
	n := v.by[c.r.Name]
	if n == nil {
		n = &visitor{}
		n.line = kit.Line[*call]{
			Together: b.visitTogether,
			Fits:     func(cs []*call, next *call) bool { return len(cs) < maxBatch && b.fits(cs, next) },
			Few:      1, Most: 1,
		}
		v.by[c.r.Name] = n
	}
	n.calls++
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if n.calls--; n.calls == 0 {
			delete(v.by, c.r.Name)
		}
	}()
	alone := false
	return c.t.try(c.do == arrives || c.do == joins, func() error {
		c.answered, c.err = false, nil
		if alone { // another call may be the reason of the failure
			b.visitTogether([]*call{c})
		} else {
			n.line.Do(context.Background(), nil, false, c)
		}
		alone = c.err != nil && kindOf(c.err, true) != collided
		return c.err
	})
}

// fits reports whether a call can share a visit: the requests that arrive in one are all for locks,
// or all for semaphores, and none is in it twice.
func (b *Backend) fits(cs []*call, next *call) bool {
	for _, c := range cs {
		if c.r.ID == next.r.ID || c.do == arrives && next.do == arrives && c.r.Semaphore() != next.r.Semaphore() {
			return false
		}
	}
	return true
}

// visitTogether is one visit for calls of one name.
func (b *Backend) visitTogether(all []*call) {
	b.pool.enter(slices.ContainsFunc(all, func(c *call) bool { return c.do != arrives || c.t.stands }))
	defer b.pool.visiting.Exit()
	cs := slices.DeleteFunc(slices.Clone(all), func(c *call) bool {
		if c.t.left.Load() {
			c.err = errLeft
		}
		return c.err != nil
	})
	if len(cs) == 0 {
		return
	}
	v := b.plan(cs)
	sent, err := b.pool.call(context.Background(), callTimeout, v.ops...)
	for _, c := range cs {
		c.answered, c.sent, c.err = err == nil, sent, err
	}
	if err != nil {
		return
	}
	v.answer(cs)
	for _, id := range v.granted {
		if !slices.ContainsFunc(cs, func(c *call) bool { return c.r.ID == id }) {
			b.notified(id)
		}
	}
}

// visitPlan is the statements of a visit, and what they return.
type visitPlan struct {
	ops   []*op
	left  map[driver.ID]leaving
	seen  map[int]position // by the number of the call that looks
	looks []*call

	granted []driver.ID
}

// leaving is what was found of a request that leaves.
type leaving struct{ alive, broken bool }

// plan makes the statements of a visit.
func (b *Backend) plan(cs []*call) *visitPlan {
	v := &visitPlan{left: map[driver.ID]leaving{}, seen: map[int]position{}}
	prefix, name := b.prefix, []byte(cs[0].r.Name)
	add := func(sql string, args ...any) *op {
		o := &op{sql: sql, args: args}
		v.ops = append(v.ops, o)
		return o
	}
	var arrive_, join_, leave_, entomb_, refuse_, shared_, look_ []*call
	for _, c := range cs {
		switch c.do {
		case arrives:
			arrive_ = append(arrive_, c)
			if !c.r.Wait {
				refuse_ = append(refuse_, c)
			}
			if c.r.Mode == driver.Shared {
				shared_ = append(shared_, c)
			}
		case joins:
			join_ = append(join_, c)
		case leaves:
			leave_ = append(leave_, c)
			if c.entombs {
				entomb_ = append(entomb_, c)
			}
		}
		if c.do != leaves {
			look_ = append(look_, c)
		}
	}
	v.ops = append(v.ops, b.pool.planned()...)
	if len(arrive_)+len(entomb_) > 0 {
		add(create, prefix, name)
	}
	add(gate, prefix, name)
	add(bury, prefix, name)
	if len(leave_) > 0 {
		ids := idsOf(leave_)
		add(drop, prefix, name, ids).each = v.leaves
		add(leave, ids).each = v.leaves
	}
	if len(arrive_) > 0 {
		a := argsOf(arrive_)
		add(arrive, prefix, name, a.ids, a.clients, a.exclusive, a.permits, a.fixed, a.ttls, a.labels)
	}
	if len(entomb_) > 0 {
		a := argsOf(entomb_)
		add(entomb, prefix, name, a.ids, a.clients, a.lasts, a.ended, int64(len(arrive_)))
	}
	if len(join_) > 0 {
		a := argsOf(join_)
		add(join, prefix, name, a.ids, a.owners, a.clients, a.exclusive, a.permits, a.fixed, a.ttls, a.labels, a.tokens, int64(len(arrive_)+len(entomb_)), a.from)
	}
	b.mu.Lock()
	client := b.client // it needs no message
	b.mu.Unlock()
	// A place in the queue that a crash of the server takes away is found missing, and the request
	// arrives again. Nothing else may be forgotten.
	places := len(leave_)+len(join_)+len(refuse_) == 0
	add(decide, prefix, name, client[:], int64(len(arrive_)+len(entomb_)+len(join_)), idsOf(arrive_), places).each = v.grants
	if len(shared_) > 0 {
		add(begin, prefix, name, idsOf(shared_))
	}
	if len(refuse_) > 0 {
		add(refuse, prefix, name, idsOf(refuse_))
		add(decide, prefix, name, client[:], int64(0), [][]byte{}, false).each = v.grants
	}
	if v.looks = look_; len(look_) > 0 {
		add(look, prefix, namesOf(look_), idsOf(look_)).each = func(rows pgx.Rows) error {
			n, p, err := scanPosition(rows)
			v.seen[n-1] = p
			return err
		}
	}
	return v
}

// grants reads a row of decide.
func (v *visitPlan) grants(rows pgx.Rows) error {
	var id hexed
	err := rows.Scan(&id, nil)
	if err == nil && id != nil {
		v.granted = append(v.granted, driver.ID(id))
	}
	return err
}

// leaves reads a row of drop or leave.
func (v *visitPlan) leaves(rows pgx.Rows) error {
	var id hexed
	var l leaving
	if err := rows.Scan(&id, &l.alive, &l.broken); err != nil {
		return err
	}
	v.left[driver.ID(id)] = l
	return nil
}

// answer gives the calls what was found.
func (v *visitPlan) answer(cs []*call) {
	for _, c := range cs {
		if c.do == leaves {
			l, found := v.left[c.r.ID]
			c.found, c.alive, c.broken = found, l.alive, l.broken
		}
	}
	for i, c := range v.looks {
		if p, is := v.seen[i]; is {
			c.p = p
			c.p.sent = c.sent
		}
	}
}

// args are the fields of the requests of calls, as arguments of a statement.
type args struct {
	ids, owners, clients, labels, from [][]byte
	exclusive, fixed, ended            []bool
	permits                            []int32
	ttls, tokens, lasts                []int64
}

func argsOf(cs []*call) (a args) {
	for _, c := range cs {
		r := &c.r
		a.ids, a.owners = append(a.ids, r.ID[:]), append(a.owners, r.Owner[:])
		a.clients, a.labels = append(a.clients, r.Client[:]), append(a.labels, []byte(r.Label))
		a.from = append(a.from, c.from[:])
		a.exclusive, a.fixed = append(a.exclusive, r.Mode == driver.Exclusive), append(a.fixed, r.Fixed)
		a.ended, a.lasts = append(a.ended, c.ended), append(a.lasts, c.lasts.Microseconds())
		a.permits = append(a.permits, int32(r.Limit))
		a.ttls, a.tokens = append(a.ttls, r.TTL.Microseconds()), append(a.tokens, int64(r.Token))
	}
	return a
}

func idsOf(cs []*call) [][]byte {
	ids := make([][]byte, len(cs))
	for i, c := range cs {
		ids[i] = c.r.ID[:]
	}
	return ids
}

func namesOf(cs []*call) [][]byte {
	names := make([][]byte, len(cs))
	for i, c := range cs {
		names[i] = []byte(c.r.Name)
	}
	return names
}

// position is what look reads of a request.
type position struct {
	token, head int64
	beside      bool
	holder      driver.ID // zero: none
	broken      bool      // the holder
	left        time.Duration
	kind        string // of the request's row; "": there is none
	place       int64
	rowBroken   bool
	rowToken    int64 // of a join
	expires     time.Duration
	use         int           // of the name: 0 none, 1 as a lock, 2 as a semaphore
	soonest     time.Duration // until the first of some shared holders and joins expires
	behind      bool          // another waiter is ahead
	label       string        // of the holder
	age         time.Duration // since it holds
	sent        time.Time     // zero: the lock has no row
}

// held reports whether an exclusive request holds the lock.
func (p *position) held() bool { return !p.holder.IsZero() && p.left > 0 }

func scanPosition(rows pgx.Rows) (n int, p position, err error) {
	var holder, label hexed
	var left, expires, soonest, age int64
	err = rows.Scan(&n, &p.token, &p.head, &p.beside, &holder, &p.broken, &left, &p.kind, &p.place, &p.rowBroken, &p.rowToken,
		&expires, &p.use, &soonest, &p.behind, &label, &age)
	copy(p.holder[:], holder)
	p.left, p.expires, p.soonest, p.age, p.label = span(left), span(expires), span(soonest), span(age), string(label)
	return n, p, err
}

// look reads what a waiting request has to know, together with other looks.
func (b *Backend) look(t *task, r driver.Request) (position, error) {
	c := &call{t: t, r: r}
	err := b.travel(&b.looks, c)
	return c.p, err
}

// lookAll sends looks in one statement.
func (b *Backend) lookAll(cs []*call) {
	o := &op{sql: look, args: []any{b.prefix, namesOf(cs), idsOf(cs)}}
	seen := map[int]position{}
	o.each = func(rows pgx.Rows) error {
		n, p, err := scanPosition(rows)
		seen[n-1] = p
		return err
	}
	sent, err := b.pool.call(context.Background(), callTimeout, o)
	for i, c := range cs {
		c.answered, c.sent, c.err = err == nil, sent, err
		if p, is := seen[i]; is && err == nil {
			p.sent = sent
			c.p = p
		}
	}
}
