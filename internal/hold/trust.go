package hold

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Margin is the last part of a TTL, in which the client no longer trusts a hold although the
// backend still has it. It allows for different clock rates and for the time until a holder is
// notified of a loss.
func Margin(ttl time.Duration) time.Duration {
	return min(ttl/20+2*time.Millisecond, time.Second, ttl/2)
}

// prove records a proof. Of two proofs the one that was sent later counts. The set is locked.
func (h *Hold) prove(ttl time.Duration, sentAt time.Time) {
	// a fixed lease ends on time, even if the service keeps it longer
	if ttl == 0 || h.req.Fixed && ttl > h.req.TTL {
		ttl = h.req.TTL
	}
	if sentAt.Before(h.sentAt) {
		return
	}
	h.sentAt, h.ttl, h.until = sentAt, ttl, sentAt.Add(ttl-Margin(ttl))
	h.answered = int32(min(h.set.now().Sub(sentAt)/time.Millisecond+1, math.MaxInt32))
}

// stands returns when the service has ended the hold by itself, at the latest. The set is locked.
func (h *Hold) stands() time.Time {
	return h.sentAt.Add(h.ttl + time.Duration(h.answered)*time.Millisecond)
}

// late reports whether trust in the hold has ended by the monotonic clock. The set is locked.
func (h *Hold) late(now time.Time) bool { return !now.Before(h.until) }

// slept reports whether trust in the hold has ended by the wall clock, which is all that Round(0)
// leaves in a time. If it has not ended by the monotonic clock, the machine was suspended or its
// wall clock was set, and only the backend knows. The set is locked.
func (h *Hold) slept(now time.Time) bool { return !now.Round(0).Before(h.until.Round(0)) }

// Judge returns whether the hold can be trusted now, by the clocks: err is nil, or ErrLost or
// ErrClosed if the hold has ended. If trust has ended and its timer is late, Judge ends the hold as
// lost. If known is false the clocks disagree, and [Hold.Prove] has to decide.
func (h *Hold) Judge() (known bool, err error) {
	s := h.set
	s.mu.Lock()
	if h.end != nil {
		defer s.mu.Unlock()
		return true, h.over()
	}
	now := s.now()
	if !h.late(now) {
		defer s.mu.Unlock()
		return !h.slept(now), nil
	}
	l := s.lost(h, h.overdue())
	s.mu.Unlock()
	s.tell(l)
	return true, driver.ErrLost
}

// Prove renews the hold with one call, which shows whether the backend has it. The error is ErrLost
// if the hold has ended; any other leaves the hold as it was.
func (h *Hold) Prove(ctx context.Context) error {
	s := h.set
	start := s.now()
	res := s.backend.Renew(ctx, []driver.Request{h.req})
	if len(res) != 1 {
		return errors.New("the driver returned no result for the renewal")
	}
	renewal := Renewal{TTL: h.req.TTL, Holds: 1, Took: s.now().Sub(start)}
	l, lost := s.apply(h, res[0])
	switch {
	case lost:
		s.tell(l)
		renewal.Lost = 1
	case res[0].Err != nil && !errors.Is(res[0].Err, driver.ErrLost):
		renewal.Unknown = 1
	}
	s.tellRenewal(renewal)
	if res[0].Err != nil {
		return res[0].Err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.end != nil || h.late(s.now()) {
		return driver.ErrLost
	}
	return nil
}

// apply records the result of a renewal. If the hold was lost by that, the caller has to tell.
func (s *Set) apply(h *Hold, p driver.Renewal) (l loss, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case h.end != nil:
	case errors.Is(p.Err, driver.ErrLost):
		l = s.lost(h, Denied)
		if p.Err != driver.ErrLost { // the backend said more
			h.end = p.Err
		}
		return l, true
	case p.Err == nil && h.late(s.now()):
		// the timer is late too, but a program that reads Until relies on the end of trust
		return s.lost(h, h.overdue()), true
	case p.Err == nil:
		h.prove(p.TTL, p.SentAt)
		if h.until.Before(h.deadline) {
			s.setDeadline(h, h.until)
		}
		s.reschedule(h)
	}
	return loss{}, false
}
