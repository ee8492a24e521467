package redlock

import (
	"testing"

	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestRedlockAround: what stands around the lock works between processes.
func TestRedlockAround(t *testing.T) {
	steps.OncePerPeriod(t, startFleet(t, servers.Redis).url(""))
}
