package hold

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// group has the holds of one TTL. They share a timer, and one call renews all of them every TTL/3.
// There is a goroutine only during that call.
type group struct {
	ttl   time.Duration
	holds []*Hold
	timer *time.Timer
	// when the timer fires; during a renewal, the time requested since it began; zero: none
	due     time.Time
	busy    bool // a renewal is under way
	failing bool // the last renewal left the outcome of some holds unknown
}

// retryShare: a failed renewal is retried after TTL/retryShare. A successful one is repeated after
// TTL/3.
const retryShare = 12

// soon is the delay of the first renewal after a grant with much less than the requested TTL. It
// gives the hold the requested TTL in the background, and a hold that is released at once costs no
// renewal.
const soon = 10 * time.Millisecond

// groupTTL is the TTL of the group that the hold belongs to: the requested one, if most of it was
// granted. On some backends the rest of it that a grant leaves differs from hold to hold. s.mu is
// locked.
func (h *Hold) groupTTL() time.Duration {
	if requested := h.req.TTL; h.ttl <= requested && h.ttl >= requested/3*2 {
		return requested
	}
	return h.ttl
}

// schedule adds the hold to its group. s.mu is locked.
func (s *Set) schedule(h *Hold) {
	ttl := h.groupTTL()
	g := s.groups[ttl]
	if g == nil {
		g = &group{ttl: ttl}
		s.groups[ttl] = g
	}
	s.renewBy(g, h.sentAt.Add(h.ttl/3))
	h.group, h.slot = g, int32(len(g.holds))
	g.holds = append(g.holds, h)
}

// reschedule moves the hold to another group after a proof, if its TTL has changed. A small change
// does not move it, unless the TTL has become the requested one. s.mu is locked.
func (s *Set) reschedule(h *Hold) {
	g, ttl := h.group, h.groupTTL()
	if g != nil && g.ttl != ttl && (ttl == h.req.TTL || h.ttl < g.ttl/3*2 || h.ttl > g.ttl*2) {
		g.remove(h)
		s.schedule(h)
	}
}

func (g *group) remove(h *Hold) {
	last := len(g.holds) - 1
	g.holds[h.slot] = g.holds[last]
	g.holds[h.slot].slot = h.slot
	g.holds[last] = nil
	g.holds = g.holds[:last]
	h.group = nil
}

// renewBy makes a renewal start by then. s.mu is locked.
func (s *Set) renewBy(g *group, by time.Time) {
	if !g.due.IsZero() && !by.Before(g.due) {
		return
	}
	g.due = by
	switch {
	case g.busy: // its end sets the timer
	case g.timer == nil:
		g.timer = time.AfterFunc(time.Until(by), func() { s.renew(g) })
	default:
		g.timer.Reset(time.Until(by))
	}
}

// batch returns the holds of a renewal that starts now, the oldest proof first, and the time limit
// of the call. The limit is before the end of trust in any of them, unless that leaves less than
// TTL/12. So if the service cannot renew all holds in that time, the next renewal goes on where the
// last one ended, and what was proved before a delay is recorded in time.
func (g *group) batch(now time.Time) ([]*Hold, time.Duration) {
	hs, left := slices.Clone(g.holds), g.ttl/3
	for _, h := range hs {
		left = min(left, h.until.Sub(now)-g.ttl/retryShare/2)
	}
	slices.SortFunc(hs, func(a, b *Hold) int { return a.sentAt.Compare(b.sentAt) })
	return hs, max(left, g.ttl/retryShare)
}

// renew renews all holds of the group with one call.
func (s *Set) renew(g *group) {
	s.mu.Lock()
	if g.busy { // its timer was set again while it fired
		s.mu.Unlock()
		return
	}
	if s.closed || len(g.holds) == 0 {
		if s.groups[g.ttl] == g {
			delete(s.groups, g.ttl)
		}
		s.mu.Unlock()
		return
	}
	start := s.now()
	hs, left := g.batch(start)
	g.busy, g.due = true, time.Time{}
	s.mu.Unlock()

	rs := make([]driver.Request, len(hs))
	for i, h := range hs {
		rs[i] = h.req
	}
	ctx, cancel := context.WithTimeout(s.ctx, left)
	res := s.backend.Renew(ctx, rs)
	cancel()
	var (
		unknown error
		losses  []loss
		renewal = Renewal{TTL: g.ttl, Holds: len(hs), Took: s.now().Sub(start)}
	)
	for i, h := range hs {
		p := driver.Renewal{Err: errors.New("the driver returned no result for this hold")}
		if i < len(res) {
			p = res[i]
		}
		if l, lost := s.apply(h, p); lost {
			losses = append(losses, l)
		} else if p.Err != nil && !errors.Is(p.Err, driver.ErrLost) {
			unknown = p.Err
			renewal.Unknown++
		}
	}
	s.tellHolders(losses)
	// the logger and the observers belong to the program and may block: they are called after the
	// next renewal is scheduled
	if s.renewAgain(g, start, unknown != nil) {
		s.log.Warn("dlock: renewal failed; trying again", "backend", s.name, "ttl", g.ttl, "err", unknown)
	}
	s.report(losses)
	renewal.Lost = len(losses)
	s.tellRenewal(renewal)
}

// renewAgain schedules the next renewal after one that began at start. It reports whether this was
// the first failure in a row.
func (s *Set) renewAgain(g *group, start time.Time, failed bool) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = failed && !g.failing
	g.busy, g.failing = false, failed
	if s.closed {
		return false
	}
	next := g.ttl / 3
	if failed {
		next = g.ttl / retryShare
	}
	due := start.Add(next)
	if soonest := s.now().Add(g.ttl / retryShare / 2); due.Before(soonest) {
		due = soonest // not at once after a slow renewal
	}
	if !g.due.IsZero() && g.due.Before(due) {
		due = g.due
	}
	g.due = due
	g.timer.Reset(time.Until(due))
	return first
}
