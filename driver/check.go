package driver

import (
	"context"
	"sync"
)

// Checker checks the service that a URL names: whether it is set up for the driver, whether the
// driver's user has the rights that the driver needs, and whether its configuration is safe for
// locks. It leaves no trace: everything that it writes is removed, or expires within minutes. The
// error reports why the service could not be reached, or what is wrong with the URL. There may be
// findings even then. No finding shows a password.
type Checker func(ctx context.Context, c Config) ([]Finding, error)

// Finding is the result of one check by a [Checker].
type Finding struct {
	About  string // what was checked, in a word or two: "eviction"
	State  State
	Found  string // what the check found
	Advice string // what to do about it; empty if it is Fine
}

// State is the verdict of a [Finding].
type State uint8

const (
	Fine   State = iota // as it should be
	Unseen              // not checked: the user's rights, or the service, do not allow it
	Risky               // locks work, except possibly in a case that the advice names
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

// RegisterChecker registers check for URLs with the scheme. It is called from init functions, after
// [Register]. It panics if the scheme has no opener or already has a checker, or if check is nil.
func RegisterChecker(scheme string, check Checker) {
	checkers.Lock()
	defer checkers.Unlock()
	if Lookup(scheme) == nil || checkers.by[scheme] != nil || check == nil {
		panic("driver: RegisterChecker: scheme " + scheme + " is not registered or already has a checker, or the checker is nil")
	}
	checkers.by[scheme] = check
}

// LookupChecker returns the checker of the scheme, or nil.
func LookupChecker(scheme string) Checker {
	checkers.RLock()
	defer checkers.RUnlock()
	return checkers.by[scheme]
}
