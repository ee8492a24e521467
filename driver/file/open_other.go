//go:build !linux

package file

import (
	"context"
	"fmt"
	"runtime"

	"github.com/dlock-go/dlock/driver"
)

// Backend is one client of a directory. On this system there is none: New returns an error.
type Backend struct{ driver.Backend }

func open(string, string) (*Backend, error) {
	return nil, fmt.Errorf("%w: file locks need Linux (its boot ID, and a monotonic clock that all processes share), not %s",
		driver.ErrUnsupported, runtime.GOOS)
}

// Capabilities implements [driver.Capable].
func (*Backend) Capabilities() driver.Capabilities { return driver.Capabilities{Backend: "file"} }

// Break implements [driver.Breaker].
func (*Backend) Break(context.Context, string, driver.Token, bool) error {
	return driver.ErrUnsupported
}

// List implements [driver.Lister].
func (*Backend) List(context.Context) ([]string, error) { return nil, driver.ErrUnsupported }
