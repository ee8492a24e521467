package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// Inspect implements [driver.Backend]. It shows the requests that a majority of the masters has.
// Waiters leave no trace. A request without a majority is not shown, since it does not hold.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	es, err := b.holders(ctx, name)
	var q driver.Queue
	for _, e := range es {
		if e.Join() {
			q.Joins = append(q.Joins, e)
		} else {
			q.Arrivals = append(q.Arrivals, e)
		}
	}
	return q, err
}

// Break implements [driver.Breaker]. It finds the requests that hold, and breaks the hold of each
// of them, that is all of its requests, on every master that it reaches. If several readers hold,
// it ends all of their holds: there are no tokens to choose one by. If a majority answered, no
// majority is left on which one of them could be renewed; otherwise the outcome is unknown, and
// Break may be called again.
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	es, err := b.holders(ctx, name)
	switch {
	case err != nil:
		return err
	case len(es) == 0 || t != 0:
		return driver.ErrNotHeld
	case es[0].Foreign:
		return fmt.Errorf("%w: the lock is held by %s, which would not be notified and would go on; end it there",
			driver.ErrUnsupported, es[0].Label)
	}
	how := "0"
	if force {
		how = "1"
	}
	var owners []driver.ID
	for _, e := range es {
		if !slices.Contains(owners, e.Owner) {
			owners = append(owners, e.Owner)
		}
	}
	timeout := b.o.NodeTimeout
	answers, err := b.broadcast(timeout, func() []*script.Call {
		calls := make([]*script.Call, len(owners))
		for i, o := range owners {
			calls[i] = b.call(b.layout.end, name, o.String(), how, channels(b.space))
		}
		return calls
	}, func(answer) {})
	if err != nil {
		return err
	}
	broken, missing, why := make([]int, len(owners)), make([]int, len(owners)), b.unanswered(timeout)
	err = collect(ctx, b, len(b.masters), timeout, answers, func(a answer) bool {
		var failed error
		for i, c := range a.calls {
			switch n, _ := c.Reply.(int64); {
			case c.Err != nil:
				failed = c.Err
			case n > 0:
				broken[i]++
			default:
				missing[i]++
			}
		}
		why.record(a.master, b.explain(name, failed))
		return false
	})
	if err != nil {
		return err
	}
	any := false
	for i := range owners {
		if broken[i]+missing[i] < b.majority {
			return why
		}
		any = any || broken[i] > 0 || !b.impossible(missing[i])
	}
	if !any {
		return driver.ErrNotHeld
	}
	return nil
}

// holders returns the requests that hold, the oldest first; none if it is certain that there are
// none. It waits for all masters, since the time left to a request depends on all that have it.
func (b *Backend) holders(ctx context.Context, name string) ([]*driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := b.checkName(name); err != nil {
		return nil, err
	}
	timeout := b.o.NodeTimeout
	answers, err := b.broadcast(timeout, func() []*script.Call { return []*script.Call{withoutTombstone(b.call(b.layout.inspect, name, "-"))} }, func(answer) {})
	if err != nil {
		return nil, err
	}
	seen := map[string][]*driver.Entry{} // by ID, or by what is known of a peer
	why := b.unanswered(timeout)
	err = collect(ctx, b, len(b.masters), timeout, answers, func(a answer) bool {
		es, err := parseMembers(name, a.calls[0])
		why.record(a.master, b.explain(name, err))
		for _, e := range es {
			id := e.ID.String()
			if e.Foreign {
				id = e.Label
			}
			seen[id] = append(seen[id], e)
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	es, most := b.held(seen)
	if len(es) == 0 && most+why.missing() >= b.majority {
		return nil, why
	}
	return es, nil
}

// held returns the requests that a majority has, the oldest first, and the largest number of
// masters that have the same request.
func (b *Backend) held(seen map[string][]*driver.Entry) (held []*driver.Entry, most int) {
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
		held = append(held, &e)
	}
	slices.SortFunc(held, func(x, y *driver.Entry) int {
		return cmp.Or(cmp.Compare(y.Age, x.Age), cmp.Compare(x.ID.String(), y.ID.String()))
	})
	return held, most
}

// parseMembers reads the reply of lua/inspect.lua: the members. It returns nil if there are none.
func parseMembers(name string, c *script.Call) (es []*driver.Entry, err error) {
	if c.Err != nil {
		return nil, c.Err
	}
	l, ok := c.Reply.([]any)
	if !ok {
		return nil, fmt.Errorf("unexpected reply %v", c.Reply)
	}
	if e := parsePeer(name, l); e != nil {
		return []*driver.Entry{e}, nil
	}
	for _, m := range l {
		e := parseMember(m)
		if e == nil {
			return nil, fmt.Errorf("unexpected reply %v", c.Reply)
		}
		e.Name = name
		es = append(es, e)
	}
	return es, nil
}

// parseMember reads one of the members; nil if it is none.
func parseMember(m any) *driver.Entry {
	l, _ := m.([]any)
	if len(l) != 9 {
		return nil
	}
	var text [9]string
	var ms [9]time.Duration
	for i := range l {
		n, isNumber := l[i].(int64)
		s, isText := l[i].(string)
		if number := i == 4 || i > 6; number != isNumber || number == isText {
			return nil
		}
		text[i], ms[i] = s, time.Duration(n)*time.Millisecond
	}
	e := &driver.Entry{Broken: strings.Contains(text[3], "b"), Left: ms[7], Age: ms[8]}
	e.Fixed, e.TTL, e.Label = strings.Contains(text[3], "f"), ms[4], text[6]
	if text[2] == "s" {
		e.Mode = driver.Shared
	}
	if errors.Join(e.ID.UnmarshalText([]byte(text[0])), e.Owner.UnmarshalText([]byte(text[1])), e.Client.UnmarshalText([]byte(text[5]))) != nil {
		return nil
	}
	return e
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
