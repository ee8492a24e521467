package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/internal/size"
)

// TestRelease runs scripts/release.sh in a clone: what it refuses, and in a long run a release.
func TestRelease(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("needs the repository: this is a copy of its files")
	}
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+role+"_NAME", "dlock")
		t.Setenv("GIT_"+role+"_EMAIL", "dlock@example.com")
	}
	script, err := filepath.Abs(filepath.Join(root, "scripts/release.sh"))
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "repo")
	run := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		if name != "git" || args[0] != "clone" {
			cmd.Dir = clone
		}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	git := func(args ...string) string {
		t.Helper()
		out, err := run("git", args...)
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return out
	}
	refused := func(why string, args ...string) {
		t.Helper()
		if out, err := run(script, args...); err == nil || !strings.Contains(out, why) {
			t.Errorf("release %q: %v, %s; want an error with %q", args, err, out, why)
		}
	}
	git("clone", "-q", "--no-tags", root, clone)
	head := git("rev-parse", "HEAD")

	refused("usage")
	for _, version := range []string{"0.1.0", "v2.0.0", "v0.01.0", "v0.1.0-01", "v0.1.0-rc..1"} {
		refused("is not a version", "--dry-run", version)
	}
	for _, old := range []string{"v0.2.0-rc.1", "v0.2.0"} {
		git("tag", old)
		refused("is not newer", "--dry-run", "v0.1.9")
		refused("is not newer", "--dry-run", "v0.2.0-rc.1")
	}
	news := filepath.Join(clone, "CHANGELOG.md")
	if err := os.WriteFile(news, []byte("## Unreleased\n\n## 0.2.0 - 2026-01-01\n\n- A.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("uncommitted changes", "v0.3.0")
	git("commit", "-q", "-a", "-m", "no news")
	refused("nothing under ## Unreleased", "v0.3.0")
	git("reset", "-q", "--hard", head)
	git("tag", "-d", "v0.2.0", "v0.2.0-rc.1")

	if !size.Long() {
		return // the rest takes a minute
	}
	const version = "v0.987.1"
	if out, err := run(script, "--dry-run", version); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if tags := git("tag"); tags != "" || git("rev-parse", "HEAD") != head || git("status", "--porcelain") != "" {
		t.Errorf("a dry run left tags (%q), a commit or files", tags)
	}
	if out, err := run(script, version); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := []string{version}
	for _, m := range modules(t) {
		if !slices.Contains([]string{".", "bench", "conformance/containers", "examples"}, m) {
			want = append(want, m+"/"+version)
		}
	}
	slices.Sort(want)
	if got := strings.Fields(git("tag")); !slices.Equal(got, want) {
		t.Errorf("the tags are %q, want %q", got, want)
	}
	for _, tag := range want {
		if mod := git("show", tag+":"+strings.TrimSuffix(tag, version)+"go.mod"); strings.Contains(mod, "replace") || strings.Contains(mod, " v0.0.0\n") {
			t.Errorf("%s requires a version that is not released:\n%s", tag, mod)
		}
	}
	if log := git("log", "--format=%s", head+"..HEAD"); log != "Changelog of "+version {
		t.Errorf("main got %q", log)
	}
	if text := git("show", "HEAD:CHANGELOG.md"); !strings.Contains(text, "## Unreleased\n\n## 0.987.1 - 20") {
		t.Errorf("the changelog is\n%.300s", text)
	}
	refused("is not newer", "--dry-run", version)
}
