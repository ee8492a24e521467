package zookeeper

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestZooKeeperMistakes makes the mistakes of docs/mistakes.md that need a ZooKeeper.
func TestZooKeeperMistakes(t *testing.T) {
	t.Parallel()
	steps.Mistakes(t, map[string]error{
		"no ZooKeeper at the address": steps.FirstLock(t, "zookeeper://127.0.0.1:1"),
	})
}
