package zookeeper

import (
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestZooKeeperMistakes makes the mistakes of docs/mistakes.md that need a ZooKeeper.
func TestZooKeeperMistakes(t *testing.T) {
	t.Parallel()
	open := func(url string) error {
		c, err := dlock.Open(t.Context(), url)
		if err == nil {
			c.Close()
		}
		return err
	}
	steps.Mistakes(t, map[string]error{
		"no ZooKeeper at the address": open("zookeeper://127.0.0.1:1"),
	})
}
