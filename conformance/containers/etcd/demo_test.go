package etcd

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestEtcdFlashSale: the stock is sold once, also while the leader is killed.
func TestEtcdFlashSale(t *testing.T) {
	c := StartCluster(t)
	steps.FlashSale(t, c.URL(), func() {
		old := c.Leader(t)
		c.Members[old].Kill(t)
		c.Leader(t)
		c.Members[old].Restart(t)
	})
}
