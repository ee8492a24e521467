package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var (
	//go:embed lua/redlock_look.lua
	redlockLookLua string
	//go:embed lua/redlock_break.lua
	redlockBreakLua string

	redlockLook  = newScript(redlockLua + redlockLookLua)
	redlockBreak = newScript(whenFull + redlockLua + redlockBreakLua)
)

// Inspect implements [driver.Backend]: it shows the one request that a majority of the masters has.
// Waiters leave no trace, and neither does a request without a majority, which is nobody's hold.
func (b *Redlock) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	e, err := b.look(ctx, name)
	if err != nil || e == nil {
		return driver.Queue{}, err
	}
	return driver.Queue{Arrivals: []*driver.Entry{e}}, nil
}

// look returns the holder, or nil if it is certain that there is none. It waits for all masters, so
// that what is left is right.
func (b *Redlock) look(ctx context.Context, name string) (*driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	timeout := b.o.NodeTimeout
	answers, err := b.ask(timeout, func() []*call { return []*call{b.call(redlockLook, name, "-")} }, func(answer) {})
	if err != nil {
		return nil, err
	}
	seen := map[driver.ID][]*driver.Entry{}
	why := b.silence(timeout)
	err = gather(ctx, b, len(b.nodes), timeout, answers, func(a answer) bool {
		e, err := parseLook(name, a.calls[0])
		why.said(a.node, b.explain(name, err))
		if e != nil {
			seen[e.ID] = append(seen[e.ID], e)
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	most := 0
	for _, es := range seen {
		if most = max(most, len(es)); len(es) < b.need {
			continue
		}
		slices.SortFunc(es, func(x, y *driver.Entry) int { return int(y.Left - x.Left) })
		e, broken := *es[b.need-1], 0 // when this one expires, the majority is gone
		for _, o := range es {
			e.Age = max(e.Age, o.Age)
			if o.Broken {
				broken++
			}
		}
		e.Broken = b.hopeless(broken)
		return &e, nil
	}
	if most+why.silent() >= b.need {
		return nil, why
	}
	return nil, nil
}

// parseLook returns nil if nobody holds there.
func parseLook(name string, c *call) (*driver.Entry, error) {
	if c.err != nil {
		return nil, c.err
	}
	l, ok := c.reply.([]any)
	if ok && len(l) == 0 {
		return nil, nil
	}
	bad := fmt.Errorf("unexpected reply %v", c.reply)
	if !ok || len(l) != 3 {
		return nil, bad
	}
	text, _ := l[0].(string)
	msLeft, _ := l[1].(int64)
	age, _ := l[2].(string)
	f := strings.SplitN(text, " ", 6) // as lua/redlock.lua has it
	if len(f) != 6 {
		return nil, bad
	}
	e := &driver.Entry{Left: time.Duration(msLeft) * time.Millisecond, Broken: f[1] == "b"}
	e.Name, e.Label = name, f[5]
	ttl, err1 := strconv.ParseInt(f[2], 10, 64)
	ms, err2 := strconv.ParseInt(age, 10, 64)
	if err := errors.Join(err1, err2, e.ID.UnmarshalText([]byte(f[0])), e.Client.UnmarshalText([]byte(f[4]))); err != nil {
		return nil, bad
	}
	e.Owner, e.TTL, e.Age = e.ID, time.Duration(ttl)*time.Millisecond, time.Duration(ms)*time.Millisecond
	return e, nil
}

// Break implements [driver.Breaker]: it finds out who holds, and breaks that request on every
// master that it reaches. Fewer than a majority are left then on which it could be renewed; else
// the outcome is unknown, and Break may be called again.
func (b *Redlock) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	e, err := b.look(ctx, name)
	switch {
	case err != nil:
		return err
	case e == nil || t != 0:
		return driver.ErrNotHeld
	}
	how := "0"
	if force {
		how = "1"
	}
	timeout := b.o.NodeTimeout
	answers, err := b.ask(timeout, func() []*call {
		return []*call{b.call(redlockBreak, name, e.ID.String(), how)}
	}, func(answer) {})
	if err != nil {
		return err
	}
	broken, absent, why := 0, 0, b.silence(timeout)
	err = gather(ctx, b, len(b.nodes), timeout, answers, func(a answer) bool {
		why.said(a.node, b.explain(name, a.calls[0].err))
		switch n, _ := a.calls[0].reply.(int64); {
		case a.calls[0].err != nil:
		case n == 1:
			broken++
		default:
			absent++
		}
		return false
	})
	switch {
	case err != nil:
		return err
	case broken == 0 && b.hopeless(absent):
		return driver.ErrNotHeld
	case broken+absent < b.need:
		return why
	}
	return nil
}
