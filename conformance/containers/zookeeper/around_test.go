package zookeeper

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestZooKeeperAround: the tools around the lock work between processes.
func TestZooKeeperAround(t *testing.T) {
	s := service.Start(t, ZooKeeper)
	url := s.URL
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		steps.OncePerPeriod(t, url)
	})
	t.Run("election", func(t *testing.T) {
		t.Parallel()
		steps.Elects(t, url)
	})
}
