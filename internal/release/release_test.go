package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/race"
)

// clone makes a clone of this repository, with a committer and a changelog that has news.
func clone(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	for key, value := range map[string]string{
		"GIT_AUTHOR_NAME": "dlock", "GIT_AUTHOR_EMAIL": "dlock@example.com", "GIT_COMMITTER_NAME": "dlock", "GIT_COMMITTER_EMAIL": "dlock@example.com",
	} {
		t.Setenv(key, value)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("needs the repository: this is a copy of its files")
	}
	git(t, root, "clone", "-q", "--no-tags", root, dir)
	return dir
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := output(exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReleaseCanBeInstalled makes a release in a clone, reads its tags as a module proxy does, and
// installs the command from that proxy.
func TestReleaseCanBeInstalled(t *testing.T) {
	if !conformance.Long() {
		t.Skip("needs a minute: make long")
	}
	repo := clone(t)
	head := git(t, repo, "rev-parse", "HEAD")
	proxy := filepath.Join(t.TempDir(), "proxy")
	const version = "v0.987.1"
	r := &release{ctx: t.Context(), repo: repo, version: version, out: t.Output()}

	if err := r.run(true, proxy); err != nil {
		t.Fatal(err)
	}
	if tags := git(t, repo, "tag"); tags != "" || git(t, repo, "rev-parse", "HEAD") != head {
		t.Errorf("a dry run left tags (%q) or a commit", tags)
	}
	want := []string{version}
	for _, dir := range []string{"cmd/dlock", "dlockgrpc", "driver/all", "driver/etcd", "driver/mysql", "driver/redis", "driver/zookeeper", "otel", "prometheus"} {
		want = append(want, dir+"/"+version)
	}
	if got := slices.Sorted(slices.Values(r.tags())); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("the tags are %v, want %v", got, want)
	}
	for _, dir := range r.modules {
		text, err := os.ReadFile(filepath.Join(proxy, filepath.FromSlash(path(dir)), "@v", version+".mod"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "replace") || strings.Contains(string(text), "v0.0.0\n") {
			t.Errorf("%s asks for what is not released:\n%s", path(dir), text)
		}
	}

	// A user has the proxy and nothing else of ours.
	bin, cache := t.TempDir(), t.TempDir()
	install := exec.CommandContext(t.Context(), "go", "install", module+"/cmd/dlock@"+version)
	install.Dir = t.TempDir()
	install.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw -trimpath "+race.Flag, "GOBIN="+bin, "GOMODCACHE="+cache, "GONOSUMDB="+module,
		"GOPROXY=file://"+filepath.ToSlash(proxy)+","+r.thirdParty())
	if _, err := output(install); err != nil {
		t.Fatal(err)
	}
	said, err := output(exec.CommandContext(t.Context(), filepath.Join(bin, "dlock"), "--version"))
	if err != nil || !strings.Contains(said, version) {
		t.Errorf("dlock --version says %q (%v)", said, err)
	}

	// And in earnest, which a push would publish.
	r = &release{ctx: t.Context(), repo: repo, version: version, out: t.Output(), tried: true}
	if err := r.run(false, ""); err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(git(t, repo, "tag")); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("the tags are %v, want %v", got, want)
	}
	if log := git(t, repo, "log", "--format=%s", head+"..HEAD"); log != "Changelog of "+version {
		t.Errorf("main got %q", log)
	}
	if mod := git(t, repo, "show", "HEAD:driver/redis/go.mod"); !strings.Contains(mod, "replace") {
		t.Error("main lost its replace lines")
	}
	again := &release{ctx: t.Context(), repo: repo, version: version, out: t.Output()}
	if err := again.run(true, ""); err == nil || !strings.Contains(err.Error(), "is not newer") {
		t.Errorf("the same version again: %v", err)
	}
}

func TestReleaseRefuses(t *testing.T) {
	repo := clone(t)
	refused := func(version, why string) {
		t.Helper()
		r := &release{ctx: context.Background(), repo: repo, version: version, out: t.Output()}
		if err := r.check(false); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want an error with %q", version, err, why)
		}
	}
	refused("0.1.0", "is no version")
	refused("v2.0.0", "is no version")
	git(t, repo, "tag", "v0.2.0")
	refused("v0.1.9", "is not newer")
	refused("v0.2.0-rc.1", "is not newer")
	if err := os.WriteFile(filepath.Join(repo, "new.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("v0.3.0", "not committed")
}

func TestChangelogOfARelease(t *testing.T) {
	day := time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC)
	got, err := released("# Changelog\n\n## Unreleased\n\n### Added\n\n- A.\n\n## 0.1.0 - 2026-01-01\n\n- B.\n", "v0.2.0", day)
	want := "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-02-03\n\n### Added\n\n- A.\n\n## 0.1.0 - 2026-01-01\n\n- B.\n"
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for _, text := range []string{"# Changelog\n", "## Unreleased\n\n## 0.1.0\n\n- B.\n", "## Unreleased\n"} {
		if got, err := released(text, "v0.2.0", day); err == nil {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestNewer(t *testing.T) {
	order := []string{"v0.1.0-rc.1", "v0.1.0-rc.2", "v0.1.0", "v0.1.1", "v0.9.0", "v0.10.0", "v1.0.0"}
	for i, a := range order {
		for j, b := range order {
			if newer(a, b) != (i > j) {
				t.Errorf("newer(%s, %s) is %t", a, b, newer(a, b))
			}
		}
	}
}
