package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// kinship is whether the holds of one client stand in the queues of another. A hold in a context is
// joined if they do, and is no concern of the lock if they do not.
//
// What the users configured decides, if they did: [Identity], or the driver's own option. Nothing
// is guessed from an address: one service has many, and two services behind two tunnels have one.
// Otherwise the services are queried, once for each two clients. The owner in the context is 128
// random bits, so it holds in no other service:
//
//  1. The second client sends a join of that owner. If it is granted, or refused as an upgrade, the
//     queues are the same.
//  2. If the owner does not hold there, the first client then renews its hold. If it still has it,
//     the queues are others, since one service would have granted the join. (This is checked again
//     after otherTime.) If it does not, the hold has ended, and the lock is [ErrLost].
//  3. Anything else is unknown: it is the error of the lock, nothing is remembered, and the next
//     lock queries again.
type kinship uint8

const (
	unknown kinship = iota
	same
	other
)

// mostKin bounds how many other clients a client remembers. If there are more, services are queried
// again.
const mostKin = 256

// otherTime bounds for how long two services are taken for two. While a service fails over, it may
// look like two.
const otherTime = time.Minute

// relation is what a client found out about another one.
type relation struct {
	kinship
	since time.Time
}

// kinship returns what c knows of d.
func (c *Client) kinship(d *Client) kinship {
	of, at := c.caps.Identity, d.caps.Identity
	switch {
	case c == d:
		return same
	case family(c.caps.Backend) != family(d.caps.Backend), differ(c.set.identity, d.set.identity), differ(of, at):
		return other
	case of != "" && of == at:
		return same
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.kin[d.id]
	if r.kinship == other && time.Since(r.since) > otherTime {
		return unknown
	}
	return r.kinship
}

// remember keeps what c found out about d.
func (c *Client) remember(d *Client, k kinship) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kin == nil {
		c.kin = map[driver.ID]relation{}
	}
	if len(c.kin) >= mostKin {
		for id := range c.kin { // any
			delete(c.kin, id)
			break
		}
	}
	c.kin[d.id] = relation{k, time.Now()}
}

// differ reports whether both are set, and not to the same.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

var imports = driver.Imports()

// family returns what the schemes of one driver have in common: rediss and redis+cluster are two
// ways to what may be one service.
func family(scheme string) string {
	if path := imports[scheme]; path != "" {
		return path
	}
	scheme, _, _ = strings.Cut(scheme, "+")
	return scheme
}

// errOther says that a hold is now known to stand in other queues.
var errOther = errors.New("the hold is of another service")

// askApart finds out what refused means, the refusal of a join by l's client. The result is
// errOther if the other client still has the hold. Otherwise the hold has ended.
func (l *lock) askApart(ctx context.Context, in *carried, refused error) error {
	if in.held == nil || l.c.kinship(in.held.c) == same {
		return in.over(refused)
	}
	switch stands, err := in.held.stands(ctx); {
	case err != nil:
		return err
	case !stands:
		return in.over(refused)
	}
	l.c.remember(in.held.c, other)
	return errOther
}

// without does for a backend without joins what get does for the others. It searches the queue for
// the owner.
func (l *lock) without(ctx context.Context, in *carried) error {
	if in.held == nil || l.c.kinship(in.held.c) == same {
		return fmt.Errorf("%w: joining the hold of another client or mode", ErrUnsupported)
	}
	if !l.c.caps.Inspect {
		return fmt.Errorf("%w: finding out whether the hold in the context is of this service; give both clients an Identity", ErrUnsupported)
	}
	q, err := l.c.inspect(ctx, l.name)
	if err != nil {
		return err
	}
	if find(q, func(e *driver.Entry) bool { return e.Owner == in.owner.id }) != nil {
		l.c.remember(in.held.c, same)
		return l.without(ctx, in)
	}
	return l.askApart(ctx, in, ErrLost)
}

// stands reports whether the service still has the hold. A fixed lease is searched for in the
// queue, since a renewal would begin its time again.
func (h *held) stands(ctx context.Context) (bool, error) {
	r := h.Request()
	if !r.Fixed {
		err := h.prove(ctx)
		if errors.Is(err, ErrLost) || errors.Is(err, ErrClosed) {
			return false, nil
		}
		return err == nil, err
	}
	if !h.c.caps.Inspect {
		return false, fmt.Errorf("%w: finding out whether the fixed lease in the context is of this service; give both clients an Identity", ErrUnsupported)
	}
	q, err := h.c.inspect(ctx, r.Name)
	if errors.Is(err, ErrClosed) {
		return false, nil
	}
	e := find(q, func(e *driver.Entry) bool { return e.ID == r.ID })
	return e != nil && !e.Broken, err
}

// find returns an entry of the queue; nil if there is none.
func find(q driver.Queue, is func(*driver.Entry) bool) *driver.Entry {
	for _, es := range [][]*driver.Entry{q.Arrivals, q.Joins} {
		for _, e := range es {
			if is(e) {
				return e
			}
		}
	}
	return nil
}
