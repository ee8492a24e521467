package dlock

import (
	"context"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// Check looks at the service that the URL names, as [Open] would use it: whether it is set up, lets
// this user do what has to be done, and is configured so that locks are safe. It takes no lock and
// changes nothing. Findings have no order of importance. The error says why the service was not
// reached, what is wrong with the URL, or, by [ErrUnsupported], that its driver checks nothing;
// there may be findings nevertheless. Nothing shows a password of the URL.
func Check(ctx context.Context, rawURL string) ([]driver.Finding, error) {
	var findings []driver.Finding
	err := reach(ctx, rawURL, nil, func(ctx context.Context, c driver.Config, _ settings) (err error) {
		check := driver.LookupChecker(c.URL.Scheme)
		if check == nil {
			return ErrUnsupported
		}
		findings, err = check(ctx, c)
		return err
	})
	return findings, wrap("check", "", schemeOf(rawURL), err)
}

// schemeOf returns the URL's scheme if there is a driver for it.
func schemeOf(rawURL string) string {
	scheme, _, _ := strings.Cut(rawURL, ":")
	if driver.Lookup(scheme) == nil {
		return ""
	}
	return scheme
}
