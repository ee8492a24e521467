package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCIRunsEveryPart holds that the jobs of CI run every part of the tests that scripts/check.sh
// knows, so that a new service cannot be left out.
func TestCIRunsEveryPart(t *testing.T) {
	find := func(path, pattern string) []string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s has nothing like %s", path, pattern)
		}
		return strings.Fields(strings.ReplaceAll(string(m[1]), ",", " "))
	}
	want := append(find("scripts/check.sh", `(?m)^readonly large='([^']*)'`), "units", "others")
	got := find(".github/workflows/ci.yml", `(?m)^ +part: \[(.*)\]$`)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("CI runs the parts %q, and scripts/check.sh has %q", got, want)
	}
}
