package arch

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/conformance"
)

// The parts of the table of failures: a row, and a test that it names.
var (
	failureRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|$`)
	namedTest  = regexp.MustCompile("`([^`]+)`")
	aLaw       = regexp.MustCompile(`^[a-z-]+$`)
	testFunc   = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestFailuresAreTested holds the last table of docs/guarantees.md to the tests: each failure names
// at least one, and each that is named exists, with the part of it that stands behind a slash.
func TestFailuresAreTested(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| what goes wrong | tested by |\n|---|---|\n")
	if !ok {
		t.Fatal("the table is missing")
	}
	laws := map[string]bool{}
	for _, l := range conformance.Laws() {
		laws[l.Name] = true
	}
	folders, texts := map[string][]string{}, map[string]string{} // of each test; of each folder
	walk(t, func(file string, text []byte) {
		if !strings.HasSuffix(file, "_test.go") {
			return
		}
		dir := path.Dir(file)
		texts[dir] += string(text)
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			folders[string(m[1])] = append(folders[string(m[1])], dir)
		}
	}, ".go")
	rows := failureRow.FindAllStringSubmatch(table, -1)
	if len(rows) < 46 {
		t.Errorf("%d rows, want at least 46", len(rows))
	}
	for _, row := range rows {
		named := 0
		for _, m := range namedTest.FindAllStringSubmatch(row[2], -1) {
			test, part, parted := strings.Cut(m[1], "/")
			switch {
			case laws[m[1]]:
				named++
			case strings.HasPrefix(test, "Test"):
				named++
				if !slices.ContainsFunc(folders[test], func(dir string) bool {
					return !parted || strings.Contains(texts[dir], `"`+part+`"`)
				}) {
					t.Errorf("%s: there is no test %s", row[1], m[1])
				}
			case aLaw.MatchString(m[1]):
				t.Errorf("%s: there is no law %s", row[1], m[1])
			}
		}
		if named == 0 {
			t.Errorf("%s: no test is named", row[1])
		}
	}
}
