package etcd

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestEtcdAround: the features around the lock work between processes.
func TestEtcdAround(t *testing.T) {
	s := service.Start(t, Etcd)
	url := s.URL
	t.Run("election", func(t *testing.T) {
		t.Parallel()
		steps.Elects(t, url)
	})
	t.Run("once", func(t *testing.T) { steps.OncePerPeriod(t, url) })
}
