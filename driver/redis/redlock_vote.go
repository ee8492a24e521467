package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

var (
	//go:embed lua/redlock.lua
	redlockLua string
	//go:embed lua/redlock_acquire.lua
	redlockAcquireLua string

	redlockAcquire = newScript(redlockLua + redlockAcquireLua)
)

// ballot is a request and what each master made of it. It is guarded by Redlock.mu.
type ballot struct {
	r     driver.Request
	votes []vote
	until time.Time // it cannot have expired before; zero: it was not granted
	over  bool      // given up or given back: a vote that comes in now is taken back
}

// vote is what one master made of a request.
type vote uint8

const (
	none  vote = iota // it does not stand there
	sent              // no answer yet
	yes               // it stands there
	maybe             // the outcome is unknown, and a copy may still be under way
	left              // it stood there, and a release removed it
)

// Acquire implements [driver.Backend]. It asks all masters at once, and returns when the outcome is
// certain. A master that grants too late for that is made to forget it.
func (b *Redlock) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := checkTTL(r.TTL, b.caps); err != nil {
		return driver.Grant{}, err
	}
	m, resumed, err := b.enter(r)
	if err != nil {
		return driver.Grant{}, err
	}
	if resumed {
		p := b.Renew(ctx, []driver.Request{r})[0]
		if p.Err != nil {
			b.abandon(ctx, m)
			return driver.Grant{}, p.Err
		}
		return driver.Grant{TTL: p.TTL, SentAt: p.SentAt}, nil
	}
	g, err := b.vote(ctx, m)
	if err != nil {
		b.abandon(ctx, m)
		return driver.Grant{}, err
	}
	return g, nil
}

func (b *Redlock) enter(r driver.Request) (m *ballot, resumed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, false, driver.ErrClosed
	case r.Mode == driver.Shared:
		return nil, false, fmt.Errorf("%w: Redlock has exclusive locks only; see its documentation", driver.ErrUnsupported)
	case r.Join():
		return nil, false, fmt.Errorf("%w: joining a hold on Redlock", driver.ErrUnsupported)
	}
	m = b.ballots[r.ID]
	if m == nil {
		m = &ballot{r: r, votes: make([]vote, len(b.nodes))}
		for i := range m.votes {
			m.votes[i] = sent
		}
		b.ballots[r.ID] = m
	}
	return m, !m.until.IsZero(), nil
}

func (b *Redlock) vote(ctx context.Context, m *ballot) (driver.Grant, error) {
	r, timeout, since := m.r, b.timeout(m.r.TTL), time.Now()
	answers, err := b.ask(timeout, func() []*call {
		who, up := r.Client.String()+" "+r.Label, int64((b.o.MinUptime+time.Second-1)/time.Second)
		return []*call{b.call(redlockAcquire, r.Name, r.ID.String(), millis(r.TTL), who, up)}
	}, func(a answer) { b.landed(m, a) })
	if err != nil {
		return driver.Grant{}, err
	}
	granted, held, lost, why, after := 0, 0, 0, b.silence(timeout), b.o.RetryDelay
	out := len(b.nodes)
	err = gather(ctx, b, out, timeout, answers, func(a answer) bool {
		out--
		state, value, err := parseVote(a.calls[0])
		if state == -2 {
			err = fmt.Errorf("it has been up for %ds only, and the least is %s", value, b.o.MinUptime)
		}
		why.said(a.node, b.explain(r.Name, err))
		switch {
		case err != nil:
		case state == 1:
			granted++
		case state == -1:
			lost++
		default:
			held++
			if value > 0 {
				after = min(after, time.Duration(value)*time.Millisecond)
			}
		}
		// Without a chance left, it remains to be seen whether a majority says so, or is silent.
		return granted >= b.need || lost > 0 || granted+out < b.need && granted+held >= b.need
	})
	switch {
	case err != nil:
		return driver.Grant{}, err
	case lost > 0:
		return driver.Grant{}, driver.ErrLost
	case granted >= b.need:
		b.mu.Lock()
		m.until = since.Add(r.TTL)
		b.mu.Unlock()
		return driver.Grant{TTL: r.TTL, SentAt: since}, nil
	case granted+held < b.need:
		return driver.Grant{}, why
	case r.Wait:
		return driver.Grant{}, &driver.Retry{After: after}
	}
	return driver.Grant{}, driver.ErrHeld
}

func parseVote(c *call) (state, value int64, err error) {
	if c.err != nil {
		return 0, 0, c.err
	}
	l, ok := c.reply.([]any)
	if !ok || len(l) == 0 {
		return 0, 0, fmt.Errorf("unexpected reply %v", c.reply)
	}
	state, ok = l[0].(int64)
	if ok && len(l) > 1 {
		value, ok = l[1].(int64)
	}
	if !ok {
		return 0, 0, fmt.Errorf("unexpected reply %v", c.reply)
	}
	return state, value, nil
}

// landed takes note of a vote. One that comes after the request was given up or given back is taken
// back. mu is held.
func (b *Redlock) landed(m *ballot, a answer) {
	v := none
	switch state, _, err := parseVote(a.calls[0]); {
	case err == nil && state == 1:
		v = yes
	case err != nil && !refused(err) && !unsent(err):
		v = maybe
	}
	if v == none && m.votes[a.node] != sent {
		return // another copy may stand there
	}
	m.votes[a.node] = v
	if m.over && v != none {
		b.owe(a.node, m, true, nil)
	}
}

// unsent reports whether the call certainly never left.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout)
}

// abandon takes back what an Acquire that failed has on the masters, and waits for those that
// answered it: they will answer again.
func (b *Redlock) abandon(ctx context.Context, m *ballot) {
	back := make(chan returned, len(b.nodes))
	n := 0
	b.mu.Lock()
	m.over = true
	delete(b.ballots, m.r.ID)
	for i, v := range m.votes {
		switch v {
		case yes:
			b.owe(i, m, false, back)
			n++
		case maybe:
			b.owe(i, m, true, nil)
		}
	}
	b.mu.Unlock()
	_ = gather(ctx, b, n, b.timeout(m.r.TTL), back, func(returned) bool { return false })
}
