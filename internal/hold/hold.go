// Package hold keeps the holds of a client: it renews them, decides how long the client may trust
// each of them, and reports when one ends.
//
// A [Hold] is one granted request. Trust in it ends at SentAt + TTL − [Margin] by the monotonic
// clock, and only a proof by the backend extends it. A hold ends once, in one of three ways:
//
//   - released ([driver.ErrNotHeld]): its last holder was detached;
//   - lost ([driver.ErrLost]): the backend does not have it, or it could not be proved in time;
//   - closed ([driver.ErrClosed]): its [Set] was closed.
//
// Each holder that is attached to the hold is notified by one callback, [Holder.Ended]. The release
// of a lost hold is sent in the background until the backend confirms that the hold is gone, so
// that a client which was wrong about the loss does not block others.
//
// One mutex, that of the Set, guards everything here. No call to the backend, to a Holder or to the
// log is made while it is locked.
package hold

import (
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Holder has a share in a hold: the hold is released when the last of its holders is detached.
type Holder interface {
	// Ended is called once, when the holder's share ends: with [driver.ErrNotHeld] when the holder
	// was detached, with [driver.ErrLost] or [driver.ErrClosed] when the hold ended that way. If
	// the hold ended, the backend's Release is called after Ended, and the observer of the hold
	// last.
	Ended(end error)
}

// Hold is a request of a client: first under way, perhaps waiting in the queue; then, if it was
// granted, held; then ended for good. The zero value is made ready by [Set.Expect]. It is safe for
// concurrent use.
type Hold struct {
	set   *Set
	req   driver.Request
	token driver.Token

	granted bool
	warned  bool // it was logged that a request of this client waits for it
	// ms, rounded up, from when the last proof was sent until its answer was here: the service may
	// have begun to count the TTL so much later than sentAt
	answered int32
	// nil, ErrNotHeld (released), ErrLost or ErrClosed; before the grant, nil or ErrLost
	// ErrLost may be wrapped in the backend's error for the loss
	end     error
	began   time.Time // when it was first requested; after the grant, when it was granted
	holders []Holder  // those attached; when the hold has ended, those attached until then
	first   [1]Holder // backs holders while there is one

	sentAt time.Time // just before the call that proved it was sent
	ttl    time.Duration
	until  time.Time // the end of trust

	deadline time.Time // in the heap of deadlines: never later than until
	place    int32     // in that heap; -1: none
	slot     int32     // the place in its group
	group    *group    // that renews it; nil: none
	observer *observer // nil: none

	next, prev *Hold // of the same name
}

// ErrLate means that a grant had expired, or may have, before it was seen here.
var ErrLate = errors.New("late grant")

// Expect makes h the request r, which is about to be sent. Until [Hold.Granted] or [Hold.Forget], a
// loss of r that the backend reports is remembered. If r waits in the queue and seems to wait for a
// hold of the same client, that is logged.
//
// A further Expect replaces r by a request with another ID; the wait goes on.
func (s *Set) Expect(h *Hold, r driver.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.set == nil {
		h.set, h.place = s, -1
	} else {
		delete(s.requests, h.req.ID)
	}
	h.req, h.end, h.sentAt = r, nil, time.Time{}
	if s.closed {
		return
	}
	s.requests[r.ID] = h
	if h.began.IsZero() && r.Wait && !r.Join() {
		h.began = s.now()
		s.setDeadline(h, h.began.Add(r.TTL))
	}
}

// Forget ends what Expect began, if there was no grant.
func (h *Hold) Forget() {
	s := h.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if !h.granted {
		delete(s.requests, h.req.ID)
		s.deadlines.remove(h)
	}
}

// Granted makes the request a hold with one holder. It fails with ErrClosed if the Set is closed;
// the Set then releases the request. It fails with [ErrLate] if trust in the grant has ended
// already or the backend reported it lost; the caller then releases it.
func (h *Hold) Granted(g driver.Grant, by Holder) error {
	s := h.set
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	h.prove(g.TTL, g.SentAt)
	switch {
	case s.closed:
		delete(s.requests, h.req.ID)
		s.releaseLater(release{Request: h.req})
		return driver.ErrClosed
	case h.end != nil || h.late(now) || h.slept(now):
		return ErrLate
	}
	h.granted, h.token, h.began = true, g.Token, now
	h.first[0] = by
	h.holders = h.first[:]
	s.link(h)
	s.setDeadline(h, h.until)
	if !h.req.Fixed {
		s.schedule(h)
		if h.ttl < h.req.TTL/3*2 {
			s.renewBy(h.group, now.Add(soon))
		}
	}
	return nil
}

// Attach adds a holder. It fails with ErrLost or ErrClosed if the hold has ended.
func (h *Hold) Attach(by Holder) error {
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	if h.end != nil {
		return h.over()
	}
	h.holders = append(h.holders, by)
	return nil
}

// Detach removes a holder. If it was the last, the hold has ended as released, and the caller has
// to send its release with [Set.Release] and then call [Set.Done]. If the holder's share had ended
// before, Detach fails with the error of [Hold.End].
func (h *Hold) Detach(by Holder) (last bool, err error) {
	s := h.set
	s.mu.Lock()
	if err := h.endOf(by); err != nil {
		s.mu.Unlock()
		return false, err
	}
	if h.late(s.now()) {
		l := s.lost(h, h.overdue())
		s.mu.Unlock()
		s.tell(l)
		return false, driver.ErrLost
	}
	i := slices.Index(h.holders, by)
	h.holders = slices.Delete(h.holders, i, i+1)
	if last = len(h.holders) == 0; last {
		s.end(h, driver.ErrNotHeld)
		s.calls.Add(1)
	}
	s.mu.Unlock()
	by.Ended(driver.ErrNotHeld)
	return last, nil
}

// End returns why the holder's share ended: ErrNotHeld if it was detached, ErrLost or ErrClosed;
// nil if it has not ended. It does not check the clock: see [Hold.Judge].
func (h *Hold) End(by Holder) error {
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	return h.endOf(by)
}

// Cause returns err or, if that is the bare ErrLost, the backend's error for the loss, which
// matches ErrLost.
func (h *Hold) Cause(err error) error {
	if err != driver.ErrLost {
		return err
	}
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	if errors.Is(h.end, driver.ErrLost) {
		return h.end
	}
	return lossErrors[Denied]
}

// bareEnd is end without the backend's error for a loss. The set is locked, or the hold has ended.
func (h *Hold) bareEnd() error {
	if errors.Is(h.end, driver.ErrLost) {
		return driver.ErrLost
	}
	return h.end
}

// endOf is End. The set is locked.
func (h *Hold) endOf(by Holder) error {
	if !slices.Contains(h.holders, by) {
		return driver.ErrNotHeld
	}
	return h.bareEnd()
}

// over returns the error of a hold that has ended for a holder that was never attached to it. The
// set is locked.
func (h *Hold) over() error {
	if h.set.closed {
		return driver.ErrClosed
	}
	return driver.ErrLost
}

// Request returns the request.
func (h *Hold) Request() *driver.Request { return &h.req }

// Token returns the fencing token.
func (h *Hold) Token() driver.Token { return h.token }

// Until returns the end of trust. It does not change any more when the hold has ended.
func (h *Hold) Until() time.Time {
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	return h.until
}
