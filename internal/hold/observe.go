package hold

import (
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// End is how a hold ended.
type End struct {
	Err  error         // ErrNotHeld (given back), ErrLost or ErrClosed
	Why  string        // of a loss: NotRenewed, Denied, Reported or TimeUp
	Held time.Duration // from its grant until it ended
	At   time.Time     // when it ended
}

// Renewal is one call that renewed holds.
type Renewal struct {
	TTL                  time.Duration // of the holds
	Holds, Unknown, Lost int           // how many; of those, how many with which outcome
	Took                 time.Duration
}

// observer is told when a hold has ended. The Set's mutex guards end until the hold has ended; then
// it belongs to who ended it.
type observer struct {
	told func(*Hold, End)
	end  End
}

// Observe has f told once, when the hold has ended and its holders know. It is called before
// [Hold.Granted]; what is never granted is not told of. f is called synchronously, with no mutex
// locked.
func (h *Hold) Observe(f func(*Hold, End)) { h.observer = &observer{told: f} }

// tellObserver is called once, by whoever ended the hold, after the holders were told.
func (h *Hold) tellObserver() {
	if o := h.observer; o != nil {
		o.told(h, o.end)
	}
}

// Released is called when the release has returned which followed on the last [Hold.Detach]. The
// backend may have said that the hold was lost.
func (h *Hold) Released(err error) {
	if o := h.observer; o != nil && errors.Is(err, driver.ErrLost) {
		o.end.Err, o.end.Why = driver.ErrLost, Denied
	}
	h.tellObserver()
}

// tellRenewal tells of a renewal.
func (s *Set) tellRenewal(r Renewal) {
	if s.renewed != nil {
		s.renewed(r)
	}
}
