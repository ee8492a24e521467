package migrations

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write all files that are made from mysql/*.up.sql")

// table is the beginning of a statement that makes a table, with its name.
var table = regexp.MustCompile(`^CREATE TABLE IF NOT EXISTS (\w+) \(\n`)

// TestOneSource checks that all other files are what is made from those that make a table, which
// are numbered from 1 without a gap.
func TestOneSource(t *testing.T) {
	ups, err := fs.Glob(Files, "mysql/*.up.sql")
	if err != nil || len(ups) == 0 {
		t.Fatalf("found %d files: %v", len(ups), err)
	}
	want := map[string]string{}
	for i, up := range ups {
		text, err := Files.ReadFile(up)
		if err != nil {
			t.Fatal(err)
		}
		makes := table.FindStringSubmatch(string(text))
		if makes == nil || up != fmt.Sprintf("mysql/%06d_%s.up.sql", i+1, makes[1]) {
			t.Fatalf("%s is number %d, and makes %q", up, i+1, makes)
		}
		down := "DROP TABLE IF EXISTS " + makes[1]
		want[up] = string(text)
		want[fmt.Sprintf("mysql/%06d_%s.down.sql", i+1, makes[1])] = down + "\n"
		want[fmt.Sprintf("goose/%06d_%s.sql", i+1, makes[1])] = fmt.Sprintf(
			"-- +goose Up\n-- +goose StatementBegin\n%s;\n-- +goose StatementEnd\n\n-- +goose Down\n%s;\n",
			strings.TrimSpace(string(text)), down)
	}
	if *update {
		for name, text := range want {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	have, err := fs.Glob(Files, "*/*")
	if err != nil || !slices.Equal(have, slices.Sorted(maps.Keys(want))) {
		t.Errorf("there are the files %q, want %q (%v)", have, slices.Sorted(maps.Keys(want)), err)
	}
	for name, text := range want {
		if got, err := Files.ReadFile(name); err != nil || string(got) != text {
			t.Errorf("%s is not what go generate ./migrations makes from the source (%v)", name, err)
		}
	}
}
