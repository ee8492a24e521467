package postgres

import (
	"os"
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

func TestMain(m *testing.M) { os.Exit(service.Main(m)) }
