package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestPackagesOfSystems: what a test run vets for other systems are all packages that have files,
// beside those of tests, which such a system leaves out or alone has.
func TestPackagesOfSystems(t *testing.T) {
	const format = `{{.Dir}}{{range .IgnoredGoFiles}} {{.}}{{end}}`
	root, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, s := range systems {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-f", format, "./...")
		cmd.Dir = strings.TrimSpace(string(root))
		cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-race=false", "GOOS="+s[0], "GOARCH="+s[1])
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			dir, files, _ := strings.Cut(strings.TrimSpace(line), " ")
			name := "." + strings.TrimPrefix(dir, cmd.Dir)
			ofTests := func(file string) bool { return strings.HasSuffix(file, "_test.go") }
			if files := slices.DeleteFunc(strings.Fields(files), ofTests); len(files) > 0 && name != "./internal/race" && !slices.Contains(found, name) {
				found = append(found, name)
			}
		}
	}
	slices.Sort(found)
	if !slices.Equal(found, ofSystems) {
		t.Errorf("for other systems a test run vets %q, and %q have files of their own", ofSystems, found)
	}
}
