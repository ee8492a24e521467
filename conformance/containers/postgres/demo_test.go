package postgres

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

func TestPostgresFlashSale(t *testing.T) {
	t.Parallel()
	onOwn(t, func(t *testing.T, s *service.Server) {
		steps.FlashSale(t, params(t, s.URL, "migrate", "true"), func() {
			killed, stop := killPostgres(t, s)
			defer stop()
			await.That(t, "connections were killed", func() bool { return killed.Load() >= 10 })
			s.Restart(t)
			before := killed.Load()
			await.That(t, "more connections were killed", func() bool { return killed.Load() >= before+3 })
		})
	})
}

func TestPostgresCommand(t *testing.T) {
	t.Parallel()
	steps.Command(t, params(t, shared(t).URL, "migrate", "true"))
}
