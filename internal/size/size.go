// Package size says how long the tests of this repository run.
package size

import "os"

// Long reports whether this is a long run, as before a release: DLOCK_TEST_LONG is set. Then every
// set-up of a service runs all laws, and tests of random histories run more of them.
func Long() bool { return os.Getenv("DLOCK_TEST_LONG") != "" }

// Longer returns n, or ten times n in a long run: how often something random is tried.
func Longer(n int) int {
	if Long() {
		return 10 * n
	}
	return n
}
