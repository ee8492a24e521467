package file

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/dlock-go/dlock/driver"
)

func init() { driver.Register("file", fromURL) }

// Options are the options of [New]. The zero value is useful.
type Options struct {
	// before every name: backends see each other's locks where prefix and name together are the same
	Prefix string
}

// New returns a backend over the queues in dir, which is created, for this user alone, if it is
// missing. All programs that share it run as one user.
//
// A directory whose file system cannot keep the promises of this package is refused with an error
// that matches [driver.ErrUnsupported] and says why.
func New(dir string, o Options) (*Backend, error) {
	switch {
	case dir == "" || strings.ContainsRune(dir, 0):
		return nil, fmt.Errorf("%w directory: want the path of a directory", driver.ErrInvalid)
	case !utf8.ValidString(o.Prefix):
		return nil, fmt.Errorf("%w prefix: want valid UTF-8", driver.ErrInvalid)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return open(abs, o.Prefix)
}

// fromURL opens file:///dir. There are no parameters beyond the shared ones.
func fromURL(ctx context.Context, c driver.Config) (driver.Backend, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if u := c.URL; u.Opaque != "" || u.Host != "" || u.User != nil || !filepath.IsAbs(u.Path) {
		return nil, fmt.Errorf("%w URL: want file:///absolute/directory, without a host", driver.ErrInvalid)
	}
	b, err := New(c.URL.Path, Options{Prefix: c.Prefix})
	if err != nil {
		return nil, err
	}
	return b, nil
}
