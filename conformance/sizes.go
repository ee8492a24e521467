package conformance

import (
	"os"
	"slices"
)

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

// sameInAllSetUps are the laws that every set-up of a service keeps if one does: either a client
// keeps them by itself, or one step of the service on one queue does, which is the same step on
// whatever server it runs.
var sameInAllSetUps = []string{
	"labels", "conflict", "inspect", "owner-not-client", "reenter", "own-name-only", "join", "join-over", "downgrade", "upgrade",
	"readers-together", "neither-starves", "semaphore-limit", "semaphore-smallest", "semaphore-order", "tokens-shared",
	"break", "break-wrong-token", "break-force", "pre-cancelled", "cancel-prompt", "cancel-answered", "cancelled-wait",
	"same-request-waiting", "loss-first", "after-loss", "unlock-cut-off", "close-cut-off", "close-wakes", "close-leaks-nothing",
	"cost-lock", "cost-wait", "cost-hold", "cost-hand-off",
}

// SameInAllSetUps reports whether every set-up of a service keeps the law if one does: more
// servers, which replicate, elect and lag, or other connections to them break it in none. It is
// false for a law that is new.
func (l Law) SameInAllSetUps() bool { return slices.Contains(sameInAllSetUps, l.Name) }
