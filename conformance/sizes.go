package conformance

import (
	"os"
	"slices"
)

// Long reports whether this is a long run, as before a release: DLOCK_TEST_LONG is set. Then every
// set-up of a service runs all laws, and what draws lots draws more of them.
func Long() bool { return os.Getenv("DLOCK_TEST_LONG") != "" }

// Longer returns n, or ten times that in a long run: how often something is done that draws lots.
func Longer(n int) int {
	if Long() {
		return 10 * n
	}
	return n
}

// alike are the laws that one set-up of a service keeps if another one does: a client keeps them by
// itself, or one step of the service on one queue does, which is the same step on whatever server
// it runs.
var alike = []string{
	"labels", "conflict", "inspect", "owner-not-client", "reenter", "own-name-only", "join", "join-over", "downgrade", "upgrade",
	"readers-together", "neither-starves", "semaphore-limit", "semaphore-smallest", "semaphore-order", "tokens-shared",
	"break", "break-wrong-token", "break-force", "pre-cancelled", "cancel-prompt", "cancel-answered", "cancelled-wait",
	"same-request-waiting", "loss-first", "after-loss", "unlock-cut-off", "close-cut-off", "close-wakes", "close-leaks-nothing",
	"cost-lock", "cost-wait", "cost-hold", "cost-hand-off",
}

// Alike reports whether all set-ups of a service keep the law if one does: more servers, which
// replicate, elect and lag, or other connections to them break it in none. A law that is new is
// not.
func (l Law) Alike() bool { return slices.Contains(alike, l.Name) }
