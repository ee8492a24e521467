package postgres

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestPostgresAround: the functions around the lock work between processes.
func TestPostgresAround(t *testing.T) {
	s := migrated(t, service.Start(t, PostgreSQL))
	url := s.URL
	t.Run("election", func(t *testing.T) {
		t.Parallel()
		steps.Elects(t, url)
	})
	t.Run("once", func(t *testing.T) { steps.OncePerPeriod(t, url) })
}
