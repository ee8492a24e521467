package zookeeper

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestZooKeeperFlashSale kills the leader in the middle of the sale.
func TestZooKeeperFlashSale(t *testing.T) {
	t.Parallel()
	e := StartEnsemble(t)
	steps.FlashSale(t, e.URL(), func() {
		leader := e.AwaitLeader(t)
		leader.Kill(t)
		e.AwaitLeader(t, leader)
	})
}
