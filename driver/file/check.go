package file

import (
	"context"
	"fmt"
	"os"

	"github.com/dlock-go/dlock/driver"
)

// check implements [driver.Checker]. That the file system and the kernel are such as they have to
// be is what New finds out.
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	b, err := fromURL(ctx, c)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	info, err := os.Stat(c.URL.Path)
	if err != nil {
		return nil, err
	}
	f := driver.Finding{About: "directory", Found: fmt.Sprintf("%s, mode %04o", c.URL.Path, info.Mode().Perm())}
	if info.Mode().Perm()&0o022 != 0 {
		f.State, f.Advice = driver.Risky, "chmod go-w: whoever may write there can end every hold"
	}
	return []driver.Finding{{About: "file system", Found: "it maps and locks files as the driver needs it"}, f}, nil
}
