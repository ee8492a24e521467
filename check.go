package dlock

import (
	"context"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// Finding is one thing that [Check] looked at.
type Finding struct {
	About  string // what was looked at, in a word or two: "eviction"
	State  State
	Found  string // what was seen; never a password
	Advice string // what to do about it; empty if the state is StateFine
}

// State is what follows from a [Finding].
type State uint8

// The states of a finding, the best first.
const (
	StateFine   = State(driver.Fine)   // as it should be
	StateUnseen = State(driver.Unseen) // the user has no right to look, or the service does not say
	StateRisky  = State(driver.Risky)  // locks work, but may not in the case that the advice names
	StateWrong  = State(driver.Wrong)  // locks do not work, or not as promised
)

// String returns "fine", "unseen", "risky" or "wrong".
func (s State) String() string { return driver.State(s).String() }

// MarshalText returns the same text as String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Check looks at the service that the URL names, as [Open] would use it: whether it is set up,
// whether the user has all rights that the driver needs, and whether it is configured so that locks
// are safe. It takes no lock and changes nothing. The order of the findings means nothing.
//
// The error says why the service could not be reached or what is wrong with the URL; it is
// [ErrUnsupported] if the driver has no checks. There may be findings beside an error. Neither
// shows a password of the URL.
func Check(ctx context.Context, rawURL string) ([]Finding, error) {
	var findings []Finding
	err := reach(ctx, rawURL, nil, func(ctx context.Context, c driver.Config, _ settings) error {
		check := driver.LookupChecker(c.URL.Scheme)
		if check == nil {
			return ErrUnsupported
		}
		found, err := check(ctx, c)
		for _, f := range found {
			findings = append(findings, Finding{About: f.About, State: State(f.State), Found: f.Found, Advice: f.Advice})
		}
		return err
	})
	return findings, wrap("check", "", schemeOf(rawURL), err)
}

// schemeOf returns the scheme of the URL if there is a driver for it.
func schemeOf(rawURL string) string {
	scheme, _, _ := strings.Cut(rawURL, ":")
	if driver.Lookup(scheme) == nil {
		return ""
	}
	return scheme
}
