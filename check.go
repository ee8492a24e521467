package dlock

import (
	"context"
	"strings"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/pair"
)

// Finding is one result of [Check].
type Finding struct {
	About  string // what was checked, in a word or two: "eviction"
	State  State
	Found  string // what was found; never a password
	Advice string // what to do about it; empty if the state is StateFine
}

// State is the verdict of a [Finding].
type State uint8

// The states of a finding, the best first.
const (
	StateFine   State = State(driver.Fine)   // as it should be
	StateUnseen State = State(driver.Unseen) // not checked: the rights or the service forbid it
	StateRisky  State = State(driver.Risky)  // locks work, but may fail as the advice says
	StateWrong  State = State(driver.Wrong)  // locks do not work, or not as promised
)

// String returns "fine", "unseen", "risky" or "wrong".
func (s State) String() string { return driver.State(s).String() }

// MarshalText returns the same text as String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Check examines the service that the URL names, as [Open] would use it: whether it is set up,
// whether the user has all rights that the driver needs, and whether it is configured so that locks
// are safe. It takes no lock and changes nothing. The findings are in no particular order.
//
// The error says why the service could not be reached or what is wrong with the URL. It is
// [ErrUnsupported] if the driver has no checks. There may be findings beside an error. Neither
// contains a password of the URL.
func Check(ctx context.Context, rawURL string) ([]Finding, error) {
	var findings []Finding
	if len(pair.URLs(rawURL)) > 1 {
		return nil, wrap("check", "", "", invalid("it is several URLs; check each of them by itself"))
	}
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
	scheme = strings.ToLower(scheme)
	if driver.Lookup(scheme) == nil {
		return ""
	}
	return scheme
}
