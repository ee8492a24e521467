package hold

import (
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// End is how a hold ended.
type End struct {
	Err  error         // ErrNotHeld (released), ErrLost or ErrClosed
	Why  string        // of a loss: NotRenewed, Denied, Reported or TimeUp
	Held time.Duration // from its grant until it ended
	At   time.Time     // when it ended
}

// Renewal is one call that renewed holds.
type Renewal struct {
	TTL                  time.Duration // of the holds
	Holds, Unknown, Lost int           // how many in all, and how many with that outcome
	Took                 time.Duration
}

// observer is notified when a hold has ended. The Set's mutex guards end until the hold has ended;
// then end belongs to the function that ended it.
type observer struct {
	ended func(*Hold, End)
	end   End
}

// Observe makes f be called once, when the hold has ended and its holders were notified. Observe
// must be called before [Hold.Granted]; f is not called for a request that is never granted. f is
// called synchronously, with no mutex locked.
func (h *Hold) Observe(f func(*Hold, End)) { h.observer = &observer{ended: f} }

// tellObserver is called once, by the function that ended the hold, after the holders were
// notified.
func (h *Hold) tellObserver() {
	if o := h.observer; o != nil {
		o.ended(h, o.end)
	}
}

// Released is called when the release after the last [Hold.Detach] has returned. The backend may
// have answered that the hold was lost.
func (h *Hold) Released(err error) {
	if o := h.observer; o != nil && errors.Is(err, driver.ErrLost) {
		o.end.Err, o.end.Why = driver.ErrLost, Denied
	}
	h.tellObserver()
}

// tellRenewal reports a renewal to the observer of renewals.
func (s *Set) tellRenewal(r Renewal) {
	if s.renewed != nil {
		s.renewed(r)
	}
}
