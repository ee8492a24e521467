package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// maxWait is how long a waiter keeps its place without a sign of life.
const maxWait = 10 * time.Second

// maxTries bounds how often a call begins again because another client was faster.
const maxTries = 100

// errBusy is the error of a call that began again too often.
var errBusy = errors.New("other clients change the lock all the time: try again")

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := kit.CheckTTL(r.TTL, b.caps); err != nil {
		return driver.Grant{}, err
	}
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	}
	m := b.requests.Begin(r)
	if b.client.IsZero() {
		b.client = r.Client
	}
	b.mu.Unlock()
	g, err := b.acquire(ctx, m, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Over() {
		err = driver.ErrClosed // Close removes it
	}
	b.sweepSoon()
	if err = b.requests.End(m, err); err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

// acquire sends the request to the server, and checks on it whenever there is a reason to, until it
// is granted or refused.
func (b *Backend) acquire(ctx context.Context, m *ownRequest, r driver.Request) (driver.Grant, error) {
	var w *kit.Waiter[*ownRequest]
	defer func() {
		if w != nil {
			b.detach(w)
		}
	}()
	for {
		b.mu.Lock()
		grant, stood := m.grant, m.Stands
		m.Notified = false
		b.mu.Unlock()
		if grant != nil && w != nil {
			return *grant, nil
		}
		t := b.newTask()
		if stood { // an outage that is shorter than its TTL does not end the wait
			t.stands, t.patience = true, max(patience, r.TTL)
		}
		g, err := run(ctx, t, b.life.Closed(), func() (*driver.Grant, error) { return b.enter(t, m, r) })
		b.mu.Lock()
		// it is not known yet what it has made, or will make
		switch open := t.left.Load() && t.made.Load(); {
		case open && !m.Uncertain:
			m.left, m.leftUntil = t, time.Now().Add(2*callTimeout)
		case open || t.doubt.Load() > 0: // the end of an earlier call proves too little
			m.left = nil
		}
		m.Uncertain = m.Uncertain || t.doubt.Load() > 0 || m.left != nil
		switch {
		case kit.IsNo(err):
			m.Answer(err)
		case err == nil && g != nil:
			m.Answer(nil)
			b.holds(m, g.SentAt, g.TTL)
		}
		b.mu.Unlock()
		if err != nil {
			return driver.Grant{}, b.waitEnded(ctx, stood && t.failure.Load() == nil, err)
		}
		if g != nil {
			return *g, nil
		}
		if w == nil {
			w = b.attach(m)
		}
		if err := w.Sleep(ctx, b.life.Closed(), 0); err != nil {
			return driver.Grant{}, b.waitEnded(ctx, true, err)
		}
	}
}

// waitEnded returns the error of an Acquire that err ended. The error says so if err is the end of
// ctx, the request stands in the queue, and the server answers.
func (b *Backend) waitEnded(ctx context.Context, stands bool, err error) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) || !stands {
		return err
	}
	if failure := b.pool.failure.Load(); failure != nil {
		return fmt.Errorf("%w: %w", err, *failure)
	}
	return driver.Waited(ctx)
}

// enter makes the request, or goes on with one that was made. It returns the grant; nil: the
// request waits.
func (b *Backend) enter(t *task, m *ownRequest, r driver.Request) (*driver.Grant, error) {
	b.mu.Lock()
	found, place, held, waits := m.found, m.place, m.Granted(), b.waiters.Group(r.Name) != nil
	m.found = nil
	b.mu.Unlock()
	switch {
	case r.Join():
		return b.join(t, r, held)
	case found != nil:
		if g, err := b.confirm(t, r, *found); !errors.Is(err, driver.ErrLost) {
			return g, err
		}
		return b.check(t, m, r, held)
	case held || place > 0:
		return b.check(t, m, r, held)
	case r.Mode == driver.Exclusive && !(waits && r.Wait):
		c, err := b.take(t, r)
		switch {
		case err != nil:
			return nil, err
		case c.token > 0:
			return &driver.Grant{Token: c.token, TTL: r.TTL, SentAt: c.sent}, nil
		case c.seen.mine:
			return nil, driver.ErrLost
		case c.seen.held && !r.Wait:
			return nil, &driver.HeldError{Label: c.seen.label, Age: c.seen.age}
		}
	}
	if !r.Wait {
		if err := b.tryable(t, r); err != nil {
			return nil, err
		}
	}
	return b.arrive(t, m, r)
}

// tryable returns an error if a request that does not wait would be refused now. It writes nothing.
func (b *Backend) tryable(t *task, r driver.Request) error {
	l, err := b.read(t, read, r.Name, firstRows)
	if err != nil {
		return err
	}
	q := l.queue()
	for _, e := range q.Arrivals {
		if e.ID == r.ID { // an earlier copy of the call made it
			return nil
		}
	}
	if _, err := q.Admit(r); err != nil {
		return err
	}
	switch waits := q.Granted() < len(q.Arrivals); {
	case waits:
		return refusal(q)
	case !l.whole: // as far as was read, all hold together
		return nil
	}
	q.Arrivals = append(q.Arrivals, &driver.Entry{Request: r})
	if q.Granted() < len(q.Arrivals) {
		return refusal(q)
	}
	return nil
}

// refusal is ErrHeld with the label of a holder, for the last request of a queue.
func refusal(q driver.Queue) error {
	for _, e := range q.Holders() {
		return &driver.HeldError{Label: e.Label, Age: e.Age}
	}
	return driver.ErrHeld
}

// arrive adds the request at the end of the queue. It arrives again when it has missed its turn:
// when a grant has expired before the client found it, or when it was not kept alive.
func (b *Backend) arrive(t *task, m *ownRequest, r driver.Request) (*driver.Grant, error) {
	for range maxTries {
		c := &call{t: t, r: r, do: arrives}
		if err := b.visit(c); err != nil {
			return nil, err
		}
		if c.p.kind == "" && c.p.holder != r.ID {
			switch {
			case c.p.sent.IsZero(): // the lock's row was removed just then
				continue
			case c.p.use == 1 && r.Semaphore(), c.p.use == 2 && !r.Semaphore():
				return nil, driver.ErrConflict
			case !r.Wait && c.p.held():
				return nil, &driver.HeldError{Label: c.p.label, Age: c.p.age}
			case !r.Wait:
				return nil, driver.ErrHeld
			}
		}
		g, again, err := b.judge(t, m, r, c.p, false)
		if !again {
			return g, err
		}
		if err := b.withdraw(t, m, r); err != nil {
			return nil, err
		}
	}
	return nil, errBusy
}

// withdraw deletes what is left of a request that arrives again.
func (b *Backend) withdraw(t *task, m *ownRequest, r driver.Request) error {
	b.mu.Lock()
	m.place, m.Stands = 0, false
	b.mu.Unlock()
	return b.visit(&call{t: t, r: r, do: leaves})
}

// check reads what became of a request that stands in the queue, or holds, and does what is due.
func (b *Backend) check(t *task, m *ownRequest, r driver.Request, held bool) (*driver.Grant, error) {
	p, err := b.look(t, r)
	if err != nil {
		return nil, err
	}
	if p.due() && !held {
		c := &call{t: t, r: r}
		if err := b.visit(c); err != nil {
			return nil, err
		}
		p = c.p
	}
	g, again, err := b.judge(t, m, r, p, held)
	if !again {
		return g, err
	}
	if err := b.withdraw(t, m, r); err != nil {
		return nil, err
	}
	if !r.Wait {
		return nil, driver.ErrHeld
	}
	return b.arrive(t, m, r)
}

// due reports whether a waiting request may be granted by a visit: no exclusive request holds the
// lock, and no other waiter is ahead.
func (p *position) due() bool {
	return p.kind == "request" && p.place > p.head && !p.held() && !p.behind
}

// judge returns what follows from the position of a request: its grant, or neither that nor an
// error if it waits, or that it has to arrive again. held says that it was granted before: then it
// is lost instead.
func (b *Backend) judge(t *task, m *ownRequest, r driver.Request, p position, held bool) (g *driver.Grant, again bool, err error) {
	stands := p.kind == "request" || p.holder == r.ID && !p.sent.IsZero()
	b.mu.Lock()
	m.Stands, m.place = stands, 0
	if p.kind == "request" {
		m.place = p.place
	}
	b.mu.Unlock()
	switch {
	case p.kind == "tombstone", p.holder == r.ID && p.broken, p.kind == "request" && p.rowBroken:
		return nil, false, driver.ErrLost
	case p.holder == r.ID && p.left > 0, p.kind == "request" && p.place <= p.head && p.expires > 0:
		if g, err = b.confirm(t, r, p); errors.Is(err, driver.ErrLost) && !held {
			return nil, true, nil // it has expired meanwhile
		}
		return g, false, err
	case held:
		return nil, false, driver.ErrLost
	case p.kind == "request" && p.place > p.head && p.expires > 0:
		b.mustWait(m, &p)
		return nil, false, nil
	}
	return nil, true, nil
}

// confirm returns the grant of a request that holds according to what was read. If that leaves it
// little time, it is renewed first, provided that it still holds.
func (b *Backend) confirm(t *task, r driver.Request, p position) (*driver.Grant, error) {
	g := &driver.Grant{Token: driver.Token(p.token), TTL: p.left, SentAt: p.sent}
	switch {
	case r.Join():
		g.Token, g.TTL = driver.Token(p.rowToken), p.expires
	case r.Mode == driver.Shared:
		g.Token, g.TTL = driver.Token(p.token-(p.head-p.place)), p.expires
	}
	if g.TTL = min(g.TTL, r.TTL); proves(&r, g.TTL, p.sent) {
		return g, nil
	}
	done, token, err := b.renewOne(t, r)
	if err = cmp.Or(err, done.Err); err != nil {
		return nil, err
	}
	if r.Mode == driver.Exclusive && !r.Join() {
		g.Token = token
	}
	g.TTL, g.SentAt = r.TTL, done.SentAt
	return g, nil
}

// join adds a request to a hold of its owner.
func (b *Backend) join(t *task, r driver.Request, held bool) (*driver.Grant, error) {
	for range maxTries {
		l, err := b.read(t, readHold, r.Name, allRows)
		if err != nil {
			return nil, err
		}
		if own := l.find(r.ID); own != nil {
			if own.kind == "join" && alive(&own.Entry) && !own.Broken {
				return b.confirm(t, r, position{rowToken: int64(own.Token)})
			}
			return nil, driver.ErrLost
		}
		if held {
			return nil, driver.ErrLost
		}
		admitted, err := l.queue().Admit(r)
		if err != nil {
			return nil, err
		}
		c := &call{t: t, r: admitted, do: joins, from: l.sponsor(&r)}
		if err := b.visit(c); err != nil {
			return nil, err
		}
		switch {
		case c.p.kind == "tombstone":
			return nil, driver.ErrLost
		case c.p.kind == "join" && c.p.expires > 0 && !c.p.rowBroken:
			return b.confirm(t, r, c.p)
		}
	}
	return nil, errBusy
}
