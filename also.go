package dlock

import (
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/pair"
)

// Also moves a running fleet to another backend: every lock of the new client is taken on the old
// client's backend as well, under the same name, all of it or none. So the client excludes those
// that lock on the old backend alone, and those that lock on the new one alone. docs/moving.md has
// the procedure.
//
// The new client takes the old one over, and its Close closes it; every other use of the old client
// fails with [ErrInvalid], and its Close does nothing. The old client must not have been used.
//
//   - A lease is lost if it is lost on either backend. A lock costs the round trips of both, and is
//     granted only while both answer.
//   - The Token is that of the old backend if it has tokens. If the tokens of both can be raised,
//     they grow across the move and on the way back.
//   - Capabilities are what both can do. If one of the backends has the format of other software,
//     or no queue, it is asked only by the first in the queue of the other one.
//   - The two are locked in one order everywhere, whichever is the old one, so that two clients
//     cannot deadlock.
//
// Creating the client fails with [ErrInvalid] if the old client is nil, closed, or itself has an
// old one; for a second Also; if both have a TTL of their own and these differ; and for two
// backends of one scheme that nothing tells apart, which need an [Identity] each.
func Also(old *Client) Option { return alsoOption{old} }

type alsoOption struct{ old *Client }

func (o alsoOption) client(s *settings) {
	switch {
	case s.also != nil:
		s.err = invalid("Also is given twice; a client locks on two backends at most")
	case o.old.opened() != nil:
		s.err = invalid("the client given to Also is nil or its zero value; make one with Open or New")
	default:
		s.also = o.old
	}
}

// errLent is the error of a client that was given to Also.
var errLent = invalid("the client was given to Also; use the client that it was given to")

// twoURLs splits "OLD NEW". For a single URL old is empty.
func twoURLs(text string) (old, new string, err error) {
	switch urls := pair.URLs(text); len(urls) {
	case 1:
		return "", urls[0], nil
	case 2:
		return urls[0], urls[1], nil
	default:
		return "", "", invalid("%d URLs; a client locks on one backend, or on two during a move: OLD NEW", len(urls))
	}
}

// join returns the pair of the backend b and that of the client given to Also.
func (s *settings) join(b driver.Backend) (driver.Backend, error) {
	old := s.also
	old.mu.Lock()
	defer old.mu.Unlock()
	switch {
	case old.closed != nil:
		return nil, invalid("the client given to Also is closed")
	case old.lent:
		return nil, invalid("the client given to Also was given to another client before")
	case old.set.also != nil:
		return nil, invalid("the client given to Also locks on two backends already; finish that move first")
	case s.chosen && old.set.chosen && s.ttl != old.set.ttl:
		return nil, invalid("the TTL of the new backend is %s, and that of the old one is %s; give both URLs the same ttl, or one of them none", s.ttl, old.set.ttl)
	case !s.chosen && old.set.chosen:
		s.ttl, s.chosen = old.set.ttl, true
	}
	before := sideOf(old.b, old.set)
	before.Notify = func(lost func(driver.ID)) { old.report.Store(&lost) }
	both, err := pair.New(sideOf(b, *s), before)
	if err != nil {
		return nil, err
	}
	if err := s.check(capabilities(both)); err != nil {
		return nil, err
	}
	old.lent = true
	s.identity = together(s.identity, old.set.identity)
	return both, nil
}

// together returns the identity of a client of two backends: the same whichever is the old one.
// Unless both have one it is unknown, and services are asked instead.
func together(a, b string) string {
	if a == "" || b == "" {
		return ""
	}
	return min(a, b) + " and " + max(a, b)
}

func sideOf(b driver.Backend, s settings) pair.Side {
	caps := capabilities(b)
	identity := s.identity
	if identity == "" {
		identity = caps.Identity
	}
	return pair.Side{Backend: b, Caps: caps, Identity: identity, Family: family(caps.Backend)}
}
