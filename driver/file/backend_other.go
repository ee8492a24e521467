//go:build !linux && !darwin

package file

import (
	"context"
	"fmt"
	"runtime"

	"github.com/dlock-go/dlock/driver"
)

// Options are the options of [New]. The zero value is useful.
type Options struct {
	// Prefix is put before every name.
	Prefix string
}

// Backend is a client of a directory. This system has none: New returns an error.
type Backend struct{ driver.Backend }

// New returns an error that matches [driver.ErrUnsupported]: this driver needs Linux or macOS.
func New(dir string, o Options) (*Backend, error) { return open(dir, o, nil) }

func open(dir string, o Options, _ <-chan struct{}) (*Backend, error) {
	if _, err := absolute(dir, o); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: file: needs Linux or macOS (a boot ID, and a monotonic clock that all processes share), not %s",
		driver.ErrUnsupported, runtime.GOOS)
}

func checkDir(string) ([]driver.Finding, error) { return nil, nil }

// Capabilities implements [driver.Capable]. It returns the zero value: a Backend can do nothing
// here.
func (*Backend) Capabilities() driver.Capabilities { return driver.Capabilities{} }

// Break implements [driver.Breaker].
func (*Backend) Break(context.Context, string, driver.Token, bool) error {
	return driver.ErrUnsupported
}

// Notify implements [driver.Notifier].
func (*Backend) Notify(func(driver.ID)) {}

// Explain implements [driver.Explainer].
func (*Backend) Explain(driver.ID) error { return nil }

// Raise implements [driver.Raiser].
func (*Backend) Raise(context.Context, driver.Request, driver.Token) error {
	return driver.ErrUnsupported
}

// List implements [driver.Lister].
func (*Backend) List(context.Context) ([]string, error) { return nil, driver.ErrUnsupported }
