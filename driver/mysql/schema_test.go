package mysql

import (
	"errors"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

// TestColumnsAreTheMigrations compares the columns that the driver asks for with those that the
// migrations make.
func TestColumnsAreTheMigrations(t *testing.T) {
	files, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string][]string{}
	table, column := regexp.MustCompile(`(?m)^CREATE TABLE IF NOT EXISTS (\w+) \($`), regexp.MustCompile(`(?m)^  ([a-z_]+) `)
	for _, f := range files {
		text, err := migrations.Files.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := table.FindSubmatch(text)
		if name == nil {
			t.Fatalf("%s makes no table:\n%s", f, text)
		}
		for _, m := range column.FindAllSubmatch(text, -1) {
			made[string(name[1])] = append(made[string(name[1])], string(m[1]))
		}
	}
	if err := mismatch(made); err != nil || len(made) != len(tables) {
		t.Errorf("%v; the tables are %q", err, slices.Sorted(maps.Keys(made)))
	}
}

// TestMismatchSaysWhatToDo: the error about tables that are not the driver's own has advice.
func TestMismatchSaysWhatToDo(t *testing.T) {
	locks, requests := tables["dlock_locks"], tables["dlock_requests"]
	more, less := append(slices.Clone(requests), "zone"), locks[1:]
	for what, c := range map[string]struct {
		locks, requests []string // nil: there is no such table
		want            error
		words           []string
	}{
		"both":                   {locks, requests, nil, nil},
		"in another order":       {locks, slices.Sorted(slices.Values(requests)), nil, nil},
		"none":                   {nil, nil, errSchema, []string{"missing: dlock_locks, dlock_requests", "?migrate=true", "mysql.Migrate"}},
		"no dlock_locks":         {nil, requests, errSchema, []string{"missing: dlock_locks)"}},
		"no dlock_requests":      {locks, nil, errSchema, []string{"missing: dlock_requests)"}},
		"a column too many":      {locks, more, errOtherSchema, []string{"dlock_requests", "zone", "drop", "one version"}},
		"a column too few":       {less, requests, errOtherSchema, []string{"dlock_locks", "drop", "one version"}},
		"other columns":          {[]string{"id"}, requests, errOtherSchema, []string{"dlock_locks has the columns id,"}},
		"other, and missing":     {nil, more, errOtherSchema, []string{"zone"}},
		"other, and missing too": {[]string{"id"}, nil, errOtherSchema, []string{"dlock_locks has the columns id,"}},
	} {
		err := mismatch(map[string][]string{"dlock_locks": slices.Clone(c.locks), "dlock_requests": slices.Clone(c.requests)})
		if !errors.Is(err, c.want) || errors.Is(err, driver.ErrUnsupported) != (c.want == errOtherSchema) {
			t.Errorf("%s: %v; want %v", what, err, c.want)
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want it to say %q", what, err, w)
			}
		}
	}
}

// TestTheTablesAreAskedForOnce: they are asked for again only while they are not the driver's own,
// or when an error of the server says that they changed. The names of columns may be in capital
// letters.
func TestTheTablesAreAskedForOnce(t *testing.T) {
	s := &scripted{strict: true}
	own, other, gone := ownTables(1<<24), answer{}, answer{}
	for i, row := range own.rows {
		own.rows[i][1] = strings.ToUpper(row[1])
		other.rows = append(other.rows, row)
	}
	other.rows = append(other.rows, []string{"dlock_locks", "zone", "16777216", "select", ""})
	bare := answer{}
	for _, row := range own.rows {
		bare.rows = append(bare.rows, append(slices.Clone(row[:4]), strings.TrimSuffix(row[4], "PRI")))
	}
	now, refuses := gone, false
	s.answer = func(stmt string) (answer, error) {
		switch {
		case strings.HasPrefix(stmt, "SELECT @@"):
			return reads(usual...), nil
		case strings.Contains(stmt, "information_schema"):
			return now, nil
		case refuses:
			return answer{}, serverError(1146, "42S02")
		}
		return answer{}, nil
	}
	b := s.client(t, Options{})
	for _, c := range []struct {
		what  string
		now   answer
		asked int
		want  error
	}{
		{"there are none", gone, 1, errSchema}, {"there are none still", gone, 2, errSchema}, {"they are another's", other, 3, driver.ErrUnsupported},
		{"they have no keys", bare, 4, driver.ErrUnsupported},
		{"they are made", own, 5, nil}, {"they are known", own, 5, nil}, {"they are taken to be there", other, 5, nil},
	} {
		now = c.now
		_, err := b.Inspect(t.Context(), "a")
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", c.what, err, c.want)
		}
		if n := s.count("information_schema"); n != c.asked {
			t.Errorf("%s: asked %d times; want %d", c.what, n, c.asked)
		}
	}
	refuses = true
	if _, err := b.Inspect(t.Context(), "a"); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("they are another's now: %v", err)
	}
	now = gone
	if _, err := b.Inspect(t.Context(), "a"); !errors.Is(err, errSchema) {
		t.Errorf("they are gone: %v", err)
	}
}
