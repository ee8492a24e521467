package file

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/dlock-go/dlock/driver"
)

func init() {
	driver.Register("file", fromURL)
	driver.RegisterChecker("file", check)
}

// fromURL opens file:///dir. It has only the parameters that every URL has.
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
	b, err := open(c.URL.Path, Options{Prefix: c.Prefix}, ctx.Done())
	if err != nil {
		return nil, err
	}
	return b, nil
}

// absolute checks the arguments of New, and returns the absolute path of the directory.
func absolute(dir string, o Options) (string, error) {
	switch {
	case dir == "" || strings.ContainsRune(dir, 0):
		return "", fmt.Errorf("%w directory: want the path of a directory", driver.ErrInvalid)
	case !utf8.ValidString(o.Prefix):
		return "", fmt.Errorf("%w prefix: want valid UTF-8", driver.ErrInvalid)
	}
	return filepath.Abs(dir)
}
