package hold

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/dlock-go/dlock/driver"
)

// loss is a hold that has just ended as lost, and the reason. The function that gets one has to
// pass it to tell.
type loss struct {
	h   *Hold
	why string // a key of reasonText
}

// Why a hold was lost.
const (
	NotRenewed = "not_renewed" // trust in it ended before a renewal succeeded
	Denied     = "denied"      // the backend no longer has it
	Reported   = "reported"    // the backend reported it lost
	TimeUp     = "time_up"     // it was a fixed lease, and its time is up
)

// reasonText is the attribute "reason" in the log.
var reasonText = map[string]string{
	NotRenewed: "no renewal succeeded in time",
	Denied:     "the backend no longer has it",
	Reported:   "the backend reported it lost (broken by an operator, or its data is gone)",
	TimeUp:     "it was a fixed lease, and its time is up",
}

// lossErrors are the errors of a loss, by its reason, where the backend did not say more.
var lossErrors = map[string]error{
	NotRenewed: lossError(NotRenewed, "; another client may hold the lock now"),
	Denied:     lossError(Denied, "; another client may hold the lock now"),
	Reported:   lossError(Reported, "; another client may hold the lock now"),
	TimeUp:     lossError(TimeUp, ""),
}

func lossError(why, more string) error {
	return fmt.Errorf("%w: %s%s", driver.ErrLost, reasonText[why], more)
}

// overdue returns why trust in the hold has ended.
func (h *Hold) overdue() string {
	if h.req.Fixed {
		return TimeUp
	}
	return NotRenewed
}

// lost ends the hold as lost, and remembers its owner before any holder is notified. s.mu is
// locked; the caller then calls tell without it.
func (s *Set) lost(h *Hold, why string) loss {
	s.end(h, driver.ErrLost)
	h.end = lossErrors[why]
	if h.observer != nil {
		h.observer.end.Why = why
	}
	s.releases.remember(h.req.Owner)
	return loss{h, why}
}

// tell notifies the holders of the losses, and then the log and the observers, which belong to the
// program and may be slow.
func (s *Set) tell(ls ...loss) {
	s.tellHolders(ls)
	s.report(ls)
}

// tellHolders notifies all holders before it has the holds released, since a release lets another
// holder in.
func (s *Set) tellHolders(ls []loss) {
	if len(ls) == 0 {
		return
	}
	for _, l := range ls {
		l.h.tell()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range ls {
		r := release{l.h.req, true}
		if l.why == TimeUp { // its holder has ended; it blocks others until its time
			s.releaseAt(l.h.stands(), r)
		} else {
			s.releaseLater(r)
		}
	}
}

// report logs losses, and then notifies the observers.
func (s *Set) report(ls []loss) {
	for _, l := range ls {
		level := slog.LevelWarn
		if l.why == TimeUp { // as planned
			level = slog.LevelDebug
		}
		attrs := []any{"name", l.h.req.Name, "backend", s.name, "token", l.h.token, "reason", reasonText[l.why]}
		if err := l.h.Cause(driver.ErrLost); err != lossErrors[l.why] {
			attrs = append(attrs, "err", err)
		}
		s.log.Log(context.Background(), level, "dlock: lease lost", attrs...)
	}
	for _, l := range ls {
		l.h.tellObserver()
	}
}

// Report records that the backend reported a loss, perhaps before the grant was seen here.
func (s *Set) Report(id driver.ID) {
	var cause error
	if e, ok := s.backend.(driver.Explainer); ok {
		cause = e.Explain(id)
	}
	s.mu.Lock()
	h := s.requests[id]
	if h == nil || !h.granted {
		if h != nil {
			h.end = driver.ErrLost
		}
		s.mu.Unlock()
		return
	}
	l := s.lost(h, Reported)
	if cause != nil && cause != driver.ErrLost { // the backend said more
		h.end = cause
	}
	s.mu.Unlock()
	s.tellHolders([]loss{l})
	go s.report([]loss{l}) // the driver may have more losses to report
}

// Lost reports whether a hold of the owner on that name was lost here, while the backend may still
// have it.
func (s *Set) Lost(name string, owner driver.ID) bool {
	s.mu.Lock()
	if s.releases.owners[owner] > 0 {
		s.mu.Unlock()
		return true
	}
	h := s.requests[owner] // trust in it may have ended while the timer is late
	if h == nil || !h.granted || h.req.Name != name || !h.late(s.now()) {
		s.mu.Unlock()
		return false
	}
	l := s.lost(h, h.overdue())
	s.mu.Unlock()
	s.tell(l)
	return true
}
