package redlock

import (
	"testing"

	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestRedlockAround: the packages around the lock work between processes.
func TestRedlockAround(t *testing.T) {
	steps.OncePerPeriod(t, startFleet(t, servers.Redis).url(""))
}
