package mysql

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

func TestMySQLFlashSale(t *testing.T) {
	t.Parallel()
	onMySQL(t, func(t *testing.T, s *service.Server) {
		steps.FlashSale(t, s.URL+"?migrate=true", func() {
			killed, stop := killMySQL(t, s)
			defer stop()
			await.That(t, "connections were killed", func() bool { return killed.Load() >= 10 })
			s.Restart(t)
			before := killed.Load()
			await.That(t, "more connections were killed", func() bool { return killed.Load() >= before+3 })
		})
	})
}

func TestMySQLCommand(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		steps.Command(t, s.URL+"?migrate=true")
	})
}
