package redis

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestRedisAround: the packages around the lock work between processes.
func TestRedisAround(t *testing.T) {
	s := service.Start(t, Redis)
	url := s.URL + "/0"
	t.Run("election", func(t *testing.T) {
		t.Parallel()
		steps.Elects(t, url)
	})
	t.Run("once", func(t *testing.T) { steps.OncePerPeriod(t, url) })
}
