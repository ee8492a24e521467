package migrations

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the goose tree")

// TestGooseTreeIsTheSame holds the two trees together: each file of goose is the up- and the
// down-file of the other tool.
func TestGooseTreeIsTheSame(t *testing.T) {
	ups, err := fs.Glob(Files, "mysql/*.up.sql")
	if err != nil || len(ups) == 0 {
		t.Fatalf("found %d files: %v", len(ups), err)
	}
	read := func(name string) string {
		b, err := Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	want := map[string]string{}
	for i, up := range ups {
		base := strings.TrimSuffix(path.Base(up), ".up.sql")
		// numbered by date, so that they stand beside those of an application
		if n := fmt.Sprintf("20261126%06d_", i+1); !strings.HasPrefix(base, n) {
			t.Errorf("%s is number %d", up, i+1)
		}
		want["goose/"+base+".sql"] = fmt.Sprintf("-- +goose Up\n-- +goose StatementBegin\n%s;\n-- +goose StatementEnd\n\n-- +goose Down\n%s;\n",
			read(up), read("mysql/"+base+".down.sql"))
	}
	if *update {
		for name, text := range want {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	have, err := fs.Glob(Files, "goose/*.sql")
	if err != nil || len(have) != len(want) {
		t.Errorf("goose has %d files, want %d (%v)", len(have), len(want), err)
	}
	for name, text := range want {
		if read(name) != strings.TrimSpace(text) {
			t.Errorf("%s differs from its files in mysql: go test ./migrations -run Goose -update writes it", name)
		}
	}
}
