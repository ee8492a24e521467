// Package size has the setting that makes the tests of this repository run longer.
package size

import "os"

// Long reports whether this is a long run, as before a release: DLOCK_TEST_LONG is set. In a long
// run all laws run on every configuration of a service, and tests of random histories run more of
// them.
func Long() bool { return os.Getenv("DLOCK_TEST_LONG") != "" }

// Longer returns n, or ten times n in a long run. n is how often a random test is repeated.
func Longer(n int) int {
	if Long() {
		return 10 * n
	}
	return n
}
