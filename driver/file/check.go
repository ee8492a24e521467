package file

import (
	"context"

	"github.com/dlock-go/dlock/driver"
)

// check implements [driver.Checker]. New checks the file system, the kernel and the owner of the
// directory.
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	b, err := fromURL(ctx, c)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	found, err := checkDir(c.URL.Path)
	return append([]driver.Finding{{About: "file system", Found: "it maps and locks files as the driver needs"}}, found...), err
}
