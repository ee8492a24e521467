package driver

import (
	"context"
	"sync"
)

// Checker looks at the service that a URL names: whether it is set up for the driver, lets the
// driver's user do what has to be done, and is configured so that locks are safe. It changes
// nothing that anybody would miss: what it writes, it removes, or it expires by itself within
// minutes. The error says why the service was not reached, or what is wrong with the URL; then
// there may be findings nevertheless. No finding shows a password.
type Checker func(ctx context.Context, c Config) ([]Finding, error)

// Finding is one thing that a [Checker] looked at.
type Finding struct {
	About  string // what was looked at, in a word or two: "eviction"
	State  State
	Found  string // what was seen
	Advice string // what to do about it; empty if it is Fine
}

// State is what follows from a [Finding].
type State uint8

const (
	Fine   State = iota // as it should be
	Unseen              // the user's rights, or the service, do not let us look
	Risky               // locks work; in a case that the advice names they may not
	Wrong               // locks do not work, or not as promised
)

// String returns "fine", "unseen", "risky" or "wrong".
func (s State) String() string {
	return [...]string{"fine", "unseen", "risky", "wrong"}[min(s, Wrong)]
}

// MarshalText returns the same text as String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var checkers = struct {
	sync.RWMutex
	by map[string]Checker
}{by: map[string]Checker{}}

// RegisterChecker makes check the checker of URLs with the scheme. It is called from init
// functions, after [Register]. It panics if the scheme has no opener or has a checker, or if check
// is nil.
func RegisterChecker(scheme string, check Checker) {
	checkers.Lock()
	defer checkers.Unlock()
	if Lookup(scheme) == nil || checkers.by[scheme] != nil || check == nil {
		panic("driver: RegisterChecker of scheme " + scheme + ": not registered, or it has a checker, or this is none")
	}
	checkers.by[scheme] = check
}

// LookupChecker returns the checker of the scheme, or nil.
func LookupChecker(scheme string) Checker {
	checkers.RLock()
	defer checkers.RUnlock()
	return checkers.by[scheme]
}
