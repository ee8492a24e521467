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
	case e.Foreign:
		return fmt.Errorf("%w: the lock is held by %s, which would not be notified and would go on; end it there",
			driver.ErrUnsupported, e.Label)
	}
	how := "0"
	if force {
		how = "1"
	}
	timeout := b.o.NodeTimeout
	answers, err := b.broadcast(timeout, func() []*script.Call {
		return []*script.Call{b.call(b.layout.end, name, e.ID.String(), how, channels(b.space))}
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
	if err := b.checkName(name); err != nil {
		return nil, err
	}
	timeout := b.o.NodeTimeout
	answers, err := b.broadcast(timeout, func() []*script.Call { return []*script.Call{b.call(b.layout.inspect, name, "-")} }, func(answer) {})
	if err != nil {
		return nil, err
	}
	// by ID, or by what is known of a peer; all includes those that joined
	holders, all := map[string][]*driver.Entry{}, map[string][]*driver.Entry{}
	why := b.unanswered(timeout)
	err = collect(ctx, b, len(b.masters), timeout, answers, func(a answer) bool {
		es, err := parseHolder(name, a.calls[0])
		why.record(a.master, b.explain(name, err))
		for i, e := range es {
			id := e.ID.String()
			if e.Foreign {
				id = e.Label
			}
			if all[id] = append(all[id], e); i == 0 {
				holders[id] = append(holders[id], e)
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
func (b *Backend) most(seen map[string][]*driver.Entry) (holder *driver.Entry, most int) {
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
	if e := parsePeer(name, l); e != nil {
		return []*driver.Entry{e}, nil
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

// parsePeer reads the reply for a holder that is a peer. It returns nil for any other reply.
func parsePeer(name string, l []any) *driver.Entry {
	if len(l) != 3 || l[1] != "f" {
		return nil
	}
	value, ok := l[0].(string)
	left, is := l[2].(int64)
	if !ok || !is {
		return nil
	}
	e := &driver.Entry{Foreign: true, Left: max(0, time.Duration(left)*time.Millisecond)}
	e.Name, e.Label = name, peerLabel(value)
	if left < 0 {
		e.Label += ", without an expiry"
	}
	// The ID matters if it is that of a request of this client, of which the master has lost all
	// but the ID. A peer's value may look like one too.
	_ = e.ID.UnmarshalText([]byte(value))
	e.Owner = e.ID
	return e
}
