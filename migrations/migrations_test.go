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

var update = flag.Bool("update", false, "write all files that are made from mysql/*.up.sql and postgres/*.up.sql")

// made is the beginning of a statement that makes a table or an index, with its kind and its name.
var made = regexp.MustCompile(`^CREATE (TABLE|INDEX) IF NOT EXISTS (\w+) (?:\(\n|ON )`)

// folders are those of the source, with the folders for goose that are made from them, and with the
// number of a file: mysql's are numbered from 1 without a gap, postgres' by a date, so that they
// can stand beside an application's in one version table.
var folders = []struct{ source, goose, number string }{
	{"mysql", "goose", "%06d"},
	{"postgres", "goose-postgres", "20261129%06d"},
}

// TestOneSource checks that all other files are what is made from those that make a table or an
// index.
func TestOneSource(t *testing.T) {
	want := map[string]string{}
	for _, f := range folders {
		ups, err := fs.Glob(Files, f.source+"/*.up.sql")
		if err != nil || len(ups) == 0 {
			t.Fatalf("%s: found %d files: %v", f.source, len(ups), err)
		}
		for i, up := range ups {
			text, err := Files.ReadFile(up)
			if err != nil {
				t.Fatal(err)
			}
			makes := made.FindStringSubmatch(string(text))
			if makes == nil {
				t.Fatalf("%s makes neither a table nor an index", up)
			}
			name := strings.TrimPrefix(makes[2], "dlock_requests_")
			if makes[1] == "INDEX" {
				name = "dlock_" + name
			}
			name = fmt.Sprintf(f.number, i+1) + "_" + name
			if up != f.source+"/"+name+".up.sql" {
				t.Fatalf("%s is number %d, and makes %q", up, i+1, makes)
			}
			down := "DROP " + makes[1] + " IF EXISTS " + makes[2]
			want[up] = string(text)
			want[f.source+"/"+name+".down.sql"] = down + "\n"
			want[f.goose+"/"+name+".sql"] = fmt.Sprintf(
				"-- +goose Up\n-- +goose StatementBegin\n%s;\n-- +goose StatementEnd\n\n-- +goose Down\n%s;\n",
				strings.TrimSpace(string(text)), down)
		}
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
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("there are the files %q, want %q (%v)", have, slices.Sorted(maps.Keys(want)), err)
	}
	for name, text := range want {
		if got, err := Files.ReadFile(name); err != nil || string(got) != text {
			t.Errorf("%s is not what go generate ./migrations makes from the source (%v)", name, err)
		}
	}
}
