package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// Inspect implements [driver.Backend]. It shows the one request that a majority of the masters has.
// Waiters leave no trace. A request without a majority is not shown, since it is not a hold.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	e, err := b.holder(ctx, name)
	if err != nil || e == nil {
		return driver.Queue{}, err
	}
	return driver.Queue{Arrivals: []*driver.Entry{e}}, nil
}

// Break implements [driver.Breaker]. It finds the holder, and breaks it on every master that it
// reaches. If a majority answered, no majority is left on which the holder could be renewed;
// otherwise the outcome is unknown, and Break may be called again.
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	e, err := b.holder(ctx, name)
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
	answers, err := b.broadcast(timeout, func() []*script.Call {
		return []*script.Call{b.call(breakScript, name, e.ID.String(), how, b.channels())}
	}, func(answer) {})
	if err != nil {
		return err
	}
	broken, missing, why := 0, 0, b.unanswered(timeout)
	err = collect(ctx, b, len(b.masters), timeout, answers, func(a answer) bool {
		why.record(a.master, b.explain(name, a.calls[0].Err))
		switch n, _ := a.calls[0].Reply.(int64); {
		case a.calls[0].Err != nil:
		case n == 1:
			broken++
		default:
			missing++
		}
		return false
	})
	switch {
	case err != nil:
		return err
	case broken == 0 && b.impossible(missing):
		return driver.ErrNotHeld
	case broken+missing < b.majority:
		return why
	}
	return nil
}

// holder returns the holder, or nil if it is certain that there is none. It waits for all masters,
// since the time left to a hold depends on all that have it. A fixed request that joined a hold
// counts as the holder if it stands on a majority, even if only some masters have executed the
// release of that hold.
func (b *Backend) holder(ctx context.Context, name string) (*driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	timeout := b.o.NodeTimeout
	answers, err := b.broadcast(timeout, func() []*script.Call { return []*script.Call{b.call(inspectScript, name, "-")} }, func(answer) {})
	if err != nil {
		return nil, err
	}
	// all includes those that joined
	holders, all := map[driver.ID][]*driver.Entry{}, map[driver.ID][]*driver.Entry{}
	why := b.unanswered(timeout)
	err = collect(ctx, b, len(b.masters), timeout, answers, func(a answer) bool {
		es, err := parseHolder(name, a.calls[0])
		why.record(a.master, b.explain(name, err))
		for i, e := range es {
			if all[e.ID] = append(all[e.ID], e); i == 0 {
				holders[e.ID] = append(holders[e.ID], e)
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	if e, _ := b.most(holders); e != nil {
		return e, nil
	}
	e, most := b.most(all)
	if e != nil {
		return e, nil
	}
	if most+why.missing() >= b.majority {
		return nil, why
	}
	return nil, nil
}

// most returns the request that a majority has, and the largest number of masters that have the
// same request. If several requests have a majority, such as a hold and what joined it, it returns
// the one that lasts longest.
func (b *Backend) most(seen map[driver.ID][]*driver.Entry) (holder *driver.Entry, most int) {
	for _, es := range seen {
		if most = max(most, len(es)); len(es) < b.majority {
			continue
		}
		slices.SortFunc(es, func(x, y *driver.Entry) int { return cmp.Compare(y.Left, x.Left) })
		e, broken := *es[b.majority-1], 0 // when this one expires, the majority is gone
		for _, o := range es {
			e.Age = max(e.Age, o.Age)
			if o.Broken {
				broken++
			}
		}
		e.Broken = b.impossible(broken)
		if holder == nil || e.Left > holder.Left {
			holder = &e
		}
	}
	return holder, most
}

// parseHolder reads the reply of lua/inspect.lua: the holder, followed by what joined it. It
// returns nil if there is no holder.
func parseHolder(name string, c *script.Call) ([]*driver.Entry, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	l, ok := c.Reply.([]any)
	if ok && len(l) == 0 {
		return nil, nil
	}
	bad := fmt.Errorf("unexpected reply %v", c.Reply)
	if !ok || len(l) < 6 || len(l)%2 != 0 {
		return nil, bad
	}
	var text [6]string // all but the fifth
	for i := range text {
		text[i], _ = l[i].(string)
	}
	client, label, _ := strings.Cut(text[3], " ")
	left, ok := l[4].(int64)
	ttl, err1 := strconv.ParseInt(text[2], 10, 64)
	age, err2 := strconv.ParseInt(text[5], 10, 64)
	e := &driver.Entry{Broken: text[1] == "b"}
	e.Name, e.Label = name, label
	if err := errors.Join(err1, err2, e.ID.UnmarshalText([]byte(text[0])), e.Client.UnmarshalText([]byte(client))); err != nil || !ok {
		return nil, bad
	}
	e.Owner = e.ID
	e.TTL, e.Left, e.Age = time.Duration(ttl)*time.Millisecond, time.Duration(left)*time.Millisecond, time.Duration(age)*time.Millisecond
	es := []*driver.Entry{e}
	for rest := l[6:]; len(rest) > 0; rest = rest[2:] {
		id, _ := rest[0].(string)
		left, ok := rest[1].(int64)
		kept := *e
		if kept.ID.UnmarshalText([]byte(id)) != nil || !ok {
			return nil, bad
		}
		kept.Owner, kept.Left = kept.ID, time.Duration(left)*time.Millisecond
		kept.TTL = kept.Left // as when it takes the holder's place
		es = append(es, &kept)
	}
	return es, nil
}
