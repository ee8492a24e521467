package hold

import (
	"context"
	"log/slog"

	"github.com/dlock-go/dlock/driver"
)

// loss is a hold that has just ended as lost, and why. Whoever has one tells of it.
type loss struct {
	h   *Hold
	why string // a key of why
}

// Why a hold was lost.
const (
	NotRenewed = "not_renewed" // trust in it ended before a renewal succeeded
	Denied     = "denied"      // the backend does not have it any more
	Reported   = "reported"    // the backend reported it lost
	TimeUp     = "time_up"     // its fixed time is over
)

// why is what the log says of them.
var why = map[string]string{
	NotRenewed: "no renewal succeeded in time",
	Denied:     "the backend does not have it any more",
	Reported:   "the backend reported it lost",
	TimeUp:     "its fixed time is over",
}

// overdue says why trust in the hold is over.
func (h *Hold) overdue() string {
	if h.req.Fixed {
		return TimeUp
	}
	return NotRenewed
}

// lost ends the hold as lost, and remembers its owner before anybody hears of it. s.mu is locked;
// tell comes after.
func (s *Set) lost(h *Hold, why string) loss {
	s.end(h, driver.ErrLost)
	if h.observer != nil {
		h.observer.end.Why = why
	}
	s.releases.remember(h.req.Owner)
	return loss{h, why}
}

// tell tells all holders of the losses, then the log and who observes, which are the program's own
// and may take their time.
func (s *Set) tell(ls ...loss) {
	s.tellHolders(ls)
	s.report(ls)
}

// tellHolders tells all holders; then it has the holds released, since somebody else is in after
// that.
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
		if l.why == TimeUp { // for its holder; it stands against others until its time
			s.releaseAt(l.h.sentAt.Add(l.h.ttl), r)
		} else {
			s.releaseLater(r)
		}
	}
}

// report tells the log of losses, and then who observes.
func (s *Set) report(ls []loss) {
	for _, l := range ls {
		level := slog.LevelWarn
		if l.why == TimeUp { // as planned
			level = slog.LevelDebug
		}
		said := []any{"name", l.h.req.Name, "backend", s.name, "token", l.h.token, "reason", why[l.why]}
		if err := l.h.Cause(driver.ErrLost); err != driver.ErrLost {
			said = append(said, "err", err)
		}
		s.log.Log(context.Background(), level, "dlock: lease lost", said...)
	}
	for _, l := range ls {
		l.h.tellObserver()
	}
}

// Report says that the backend noticed a loss, perhaps before the grant was seen here.
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
	if cause != nil {
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
	h := s.requests[owner] // trust in it may be over, and the timer late
	if h == nil || !h.granted || h.req.Name != name || !h.late(s.now()) {
		s.mu.Unlock()
		return false
	}
	l := s.lost(h, h.overdue())
	s.mu.Unlock()
	s.tell(l)
	return true
}
