// Package alarm calls functions at set times, to limit the time of calls.
package alarm

import (
	"sync"
	"time"
)

// Clock calls functions at their times, with one timer for all. A timer for each short call costs
// more than it seems: setting a timer that is earlier than all others wakes the thread that waits
// for the network. The zero value has no alarms. The methods are safe for concurrent use.
type Clock struct {
	mu    sync.Mutex
	all   map[*alarm]struct{}
	timer *time.Timer
	armed time.Time // when the timer fires, perhaps too early; zero: it is not running
}

type alarm struct {
	at time.Time
	f  func()
}

// After calls f after d, in a goroutine of its own, unless stop is called first. stop reports
// whether it came first.
func (a *Clock) After(d time.Duration, f func()) (stop func() bool) {
	one := &alarm{time.Now().Add(d), f}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[*alarm]struct{}{}
	}
	a.all[one] = struct{}{}
	a.arm(one.at)
	return func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		_, first := a.all[one]
		delete(a.all, one)
		return first
	}
}

// arm makes the timer fire by that time. a.mu is held.
func (a *Clock) arm(by time.Time) {
	switch {
	case a.timer == nil:
		a.timer = time.AfterFunc(time.Until(by), a.ring)
	case a.armed.IsZero() || by.Before(a.armed):
		a.timer.Reset(time.Until(by))
	default:
		return
	}
	a.armed = by
}

// ring calls the functions that are due.
func (a *Clock) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	var next time.Time
	for one := range a.all {
		switch {
		case !now.Before(one.at):
			delete(a.all, one)
			go one.f()
		case next.IsZero() || one.at.Before(next):
			next = one.at
		}
	}
	if a.armed = (time.Time{}); !next.IsZero() {
		a.arm(next)
	}
}
