//go:build !linux

package file

import (
	"fmt"
	"runtime"

	"github.com/dlock-go/dlock/driver"
)

func open(string, string) (driver.Backend, error) {
	return nil, fmt.Errorf("%w: file locks need Linux (its boot ID, and a monotonic clock that all processes share), not %s",
		driver.ErrUnsupported, runtime.GOOS)
}
