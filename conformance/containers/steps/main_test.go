package steps

import (
	"os"
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	_ "github.com/dlock-go/dlock/driver/file"
)

func TestMain(m *testing.M) { os.Exit(service.Main(m)) }

// The tools around the lock also work between the processes of one machine.
func TestFileAround(t *testing.T) {
	url := "file://" + t.TempDir()
	t.Run("election", func(t *testing.T) {
		t.Parallel()
		Elects(t, url)
	})
	t.Run("once", func(t *testing.T) { OncePerPeriod(t, url) })
}
