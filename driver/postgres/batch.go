package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// maxBatch is how many calls travel in one statement.
const maxBatch = 256

// slow is how long calls wait for a statement that may be blocked, before they are sent beside it.
const slow = 20 * time.Millisecond

// newLine returns a line that sends calls of one kind. A call that finds none under way is sent at
// once. Calls that come meanwhile travel together: the server then plans, commits and answers once
// for all of them.
func newLine(run func([]*call)) kit.Line[*call] {
	return kit.Line[*call]{
		Alone:    func(_ context.Context, c *call) bool { run([]*call{c}); return true },
		Together: run,
		Key:      func(c *call) string { return c.r.Name },
		Fits:     func(cs []*call, _ *call) bool { return len(cs) < maxBatch },
		Few:      1, Most: 2, Slow: slow,
	}
}

// travel sends a call until it is answered, alone or together with others.
func (b *Backend) travel(l *kit.Line[*call], c *call) error {
	return c.t.try(l == &b.takes, func() error {
		alone := c.err != nil // another call may be the reason of the failure
		if c.answered, c.err = false, nil; alone {
			l.Together([]*call{c})
		} else {
			l.Do(context.Background(), nil, false, c)
		}
		return c.err
	})
}

// seen is what a take saw of a lock that it did not get.
type seen struct {
	mine  bool // the request is its holder, and does not hold any more
	held  bool
	label string // of the holder
	age   time.Duration
}

// take tries to take a lock that is free, and has nothing beside it.
func (b *Backend) take(t *task, r driver.Request) (*call, error) {
	c := &call{t: t, r: r}
	return c, b.travel(&b.takes, c)
}

// takeAll sends takes in one statement.
func (b *Backend) takeAll(cs []*call) {
	a := argsOf(cs)
	o := &op{sql: take, args: []any{b.prefix, namesOf(cs), a.ids, a.clients, a.labels, a.ttls, a.fixed}}
	if len(cs) == 1 {
		o.sql, o.args = takeOne, []any{b.prefix, []byte(cs[0].r.Name), a.ids[0], a.clients[0], a.labels[0], a.ttls[0], a.fixed[0]}
	}
	o.each = func(rows pgx.Rows) error {
		var n, token, age int64
		var s seen
		var label hexed
		if err := rows.Scan(&n, &token, &s.mine, &s.held, &label, &age); err != nil {
			return err
		}
		s.label, s.age = string(label), span(age)
		cs[n-1].token, cs[n-1].seen = driver.Token(token), s
		return nil
	}
	sent, err := b.pool.call(context.Background(), callTimeout, o)
	for _, c := range cs {
		c.answered, c.sent, c.err = err == nil, sent, err
	}
}

// give releases a lock that has nothing beside it, and reports whether it did.
func (b *Backend) give(t *task, r driver.Request) (bool, error) {
	c := &call{t: t, r: r}
	err := b.travel(&b.gives, c)
	return c.alive, err
}

// giveAll sends gives in one statement.
func (b *Backend) giveAll(cs []*call) {
	gone := map[driver.ID]bool{}
	o := &op{sql: give, args: []any{b.prefix, namesOf(cs), idsOf(cs)}}
	if len(cs) == 1 {
		o.sql, o.args = giveOne, []any{b.prefix, []byte(cs[0].r.Name), cs[0].r.ID[:]}
	}
	o.each = func(rows pgx.Rows) error {
		var id hexed
		err := rows.Scan(&id)
		if err == nil {
			gone[driver.ID(id)] = true
		}
		return err
	}
	sent, err := b.pool.call(context.Background(), callTimeout, o)
	for _, c := range cs {
		c.answered, c.sent, c.err = err == nil, sent, err
		c.alive = err == nil && gone[c.r.ID]
	}
}
