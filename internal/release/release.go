package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const module = "github.com/dlock-go/dlock"

// unreleased are the modules that nobody imports: tests of services, and tools.
var unreleased = []string{"bench", "conformance/containers", "examples", "internal/tools"}

// release is one release.
type release struct {
	ctx     context.Context
	repo    string // the clone in which the command was called
	version string
	out     io.Writer

	clone   string   // in which the release is made
	cache   string   // of modules, for this release alone
	modules []string // the folders, each after those that it asks for
	tried   bool     // it was installed before
}

// run makes the release in a clone, tries it, and takes the tags over unless the run is dry.
func (r *release) run(dry bool, proxy string) error {
	if err := r.check(dry); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "dlock-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r.clone, r.cache = filepath.Join(dir, "clone"), filepath.Join(dir, "modules")
	if _, err := r.git(r.repo, "clone", "-q", ".", r.clone); err != nil {
		return err
	}
	if proxy == "" {
		proxy = filepath.Join(dir, "proxy")
	}
	for _, s := range []struct {
		what string
		do   func() error
	}{
		{"changelog", r.changelog},
		{"modules", r.resolve},
		{"tags", r.tag},
		{"proxy of files", func() error { return r.publish(proxy) }},
		{"installation", func() error { return r.install(proxy, filepath.Join(dir, "bin")) }},
	} {
		if s.what == "installation" && r.tried {
			continue
		}
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		fmt.Fprintf(r.out, "ok  %s\n", s.what)
	}
	if dry {
		return nil
	}
	return r.take()
}

var semantic = regexp.MustCompile(`^v[01]\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// check refuses a release that could not be one.
func (r *release) check(dry bool) error {
	if !semantic.MatchString(r.version) {
		return fmt.Errorf("%s is no version: want v0.Y.Z or v1.Y.Z (a greater one changes the modules' paths)", r.version)
	}
	status, err := r.git(r.repo, "status", "--porcelain")
	if err != nil {
		return err
	}
	if status != "" {
		if !dry {
			return fmt.Errorf("there is what is not committed:\n%s", status)
		}
		fmt.Fprintln(r.out, "note: what is not committed is not part of this dry run")
	}
	tags, err := r.git(r.repo, "tag", "--list", "v*")
	if err != nil {
		return err
	}
	for _, tag := range strings.Fields(tags) {
		if semantic.MatchString(tag) && !newer(r.version, tag) {
			return fmt.Errorf("%s is there, and %s is not newer", tag, r.version)
		}
	}
	return nil
}

// newer reports whether a version comes after another one. One with a suffix comes before the one
// without it.
func newer(version, than string) bool {
	parts := func(v string) (n []int, suffix string) {
		v, suffix, _ = strings.Cut(strings.TrimPrefix(v, "v"), "-")
		for part := range strings.SplitSeq(v, ".") {
			i, _ := strconv.Atoi(part)
			n = append(n, i)
		}
		return n, suffix
	}
	a, as := parts(version)
	b, bs := parts(than)
	if c := slices.Compare(a, b); c != 0 {
		return c > 0
	}
	return bs != "" && (as == "" || as > bs)
}

// changelog gives the version what stands under Unreleased.
func (r *release) changelog() error {
	name := filepath.Join(r.clone, "CHANGELOG.md")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	with, err := released(string(text), r.version, time.Now())
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, []byte(with), 0o600); err != nil {
		return err
	}
	if err := r.commit("Changelog of " + r.version); err != nil {
		return err
	}
	_, err = r.git(r.clone, "branch", kept)
	return err
}

// kept is the branch, in the clone, of what main gets of a release.
const kept = "kept-of-release"

// released is a changelog in which what stood under Unreleased is that of a version.
func released(text, version string, day time.Time) (string, error) {
	const head = "## Unreleased\n"
	before, after, ok := strings.Cut(text, head)
	if !ok {
		return "", errors.New("CHANGELOG.md has no heading ## Unreleased")
	}
	news, older, more := strings.Cut(after, "\n## ")
	if strings.TrimSpace(news) == "" {
		return "", errors.New("CHANGELOG.md has nothing under ## Unreleased")
	}
	text = before + head + "\n## " + strings.TrimPrefix(version, "v") + " - " + day.Format(time.DateOnly) + "\n" + news
	if more {
		text += "\n## " + older
	}
	return text, nil
}

// mod is what go mod edit -json says.
type mod struct {
	Module  struct{ Path string }
	Require []struct{ Path, Version string }
	Replace []struct {
		Old struct{ Path string }
	}
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// path is the path of the module in a folder.
func path(dir string) string { return strings.TrimSuffix(module+"/"+dir, "/.") }

// resolve finds the modules, each after those that it asks for.
func (r *release) resolve() error {
	asks := map[string][]string{}
	err := filepath.WalkDir(r.clone, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(r.clone, filepath.Dir(name))
		dir = filepath.ToSlash(dir)
		if err != nil || e.Name() != "go.mod" || slices.Contains(unreleased, dir) || slices.Contains(strings.Split(dir, "/"), "testdata") {
			return err
		}
		m, err := r.edit(dir, "-json")
		if err != nil {
			return err
		}
		if m.Module.Path != path(dir) {
			return fmt.Errorf("the module in %s is %s", dir, m.Module.Path)
		}
		asks[dir] = []string{}
		for _, q := range m.Require {
			if ours(q.Path) {
				asks[dir] = append(asks[dir], q.Path)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for len(asks) > 0 {
		n := len(r.modules)
		for _, dir := range slices.Sorted(maps.Keys(asks)) {
			if !slices.ContainsFunc(asks[dir], func(p string) bool {
				return !slices.ContainsFunc(r.modules, func(d string) bool { return path(d) == p })
			}) {
				r.modules = append(r.modules, dir)
				delete(asks, dir)
			}
		}
		if len(r.modules) == n {
			return fmt.Errorf("these modules ask for each other, or for one that is not released: %v", slices.Sorted(maps.Keys(asks)))
		}
	}
	return nil
}

// tags are the tags of the release, one for each module.
func (r *release) tags() (tags []string) {
	for _, dir := range r.modules {
		tags = append(tags, strings.TrimPrefix(dir+"/"+r.version, "./"))
	}
	return tags
}

// tag makes the modules ask for each other by version, and tags them. What main keeps are the
// replace lines: the commit that is tagged stands beside it.
func (r *release) tag() error {
	if _, err := r.git(r.clone, "checkout", "-q", "--detach"); err != nil {
		return err
	}
	tags := r.tags()
	for i, dir := range r.modules {
		if err := r.bind(dir); err != nil {
			return err
		}
		// The sums of a module can be known when it is tagged, and it does not change when others
		// do: no module has another one's files.
		if err := r.commit(fmt.Sprintf("%s %s", path(dir), r.version)); err != nil {
			return err
		}
		if _, err := r.git(r.clone, "tag", tags[i]); err != nil {
			return err
		}
	}
	// One commit has all of it.
	if _, err := r.git(r.clone, "reset", "-q", "--soft", kept); err != nil {
		return err
	}
	if err := r.commit("Release " + r.version + ": the modules ask for each other by version"); err != nil {
		return err
	}
	for i, dir := range r.modules {
		if _, err := r.git(r.clone, "tag", "--force", "--annotate", "--message", path(dir)+" "+r.version, tags[i]); err != nil {
			return err
		}
	}
	return nil
}

// bind makes a module ask for the others by version.
func (r *release) bind(dir string) error {
	m, err := r.edit(dir, "-json")
	if err != nil {
		return err
	}
	var args []string
	for _, p := range m.Replace {
		if !ours(p.Old.Path) {
			return fmt.Errorf("%s replaces %s: no user of it would", path(dir), p.Old.Path)
		}
		args = append(args, "-dropreplace="+p.Old.Path)
	}
	for _, q := range m.Require {
		if ours(q.Path) {
			args = append(args, "-require="+q.Path+"@"+r.version)
		}
	}
	if len(args) > 0 {
		if _, err := r.edit(dir, args...); err != nil {
			return err
		}
	}
	return r.sum(dir, m)
}

// sum writes the sums of this repository's modules to the go.sum of one that asks for them. Those
// of all others are there.
func (r *release) sum(dir string, m mod) error {
	name := filepath.Join(r.clone, dir, "go.sum")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := slices.Collect(strings.Lines(string(text)))
	for _, q := range m.Require {
		if !ours(q.Path) {
			continue
		}
		at := q.Path + "@" + r.version
		out, err := r.goTool(r.cache, nil, "mod", "download", "-json", at)
		if err != nil {
			return err
		}
		var got struct{ Sum, GoModSum string }
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		lines = append(lines, q.Path+" "+r.version+" "+got.Sum+"\n", q.Path+" "+r.version+"/go.mod "+got.GoModSum+"\n")
	}
	if len(lines) == 0 {
		return nil
	}
	slices.SortStableFunc(lines, func(a, b string) int {
		return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0])
	})
	return os.WriteFile(name, []byte(strings.Join(lines, "")), 0o600)
}

// publish writes the release as a module proxy of files, as a proxy would read it from the tags,
// and compares its sums with those that the modules ask for.
func (r *release) publish(proxy string) error {
	cache, err := os.MkdirTemp(filepath.Dir(r.clone), "cache-")
	if err != nil {
		return err
	}
	for _, dir := range r.modules {
		if _, err := r.goTool(cache, nil, "mod", "download", path(dir)+"@"+r.version); err != nil {
			return err
		}
		if err := r.sums(cache, dir); err != nil {
			return err
		}
	}
	return os.CopyFS(proxy, os.DirFS(filepath.Join(cache, "cache", "download")))
}

// sums compares the sum of a module with those that the others have of it.
func (r *release) sums(cache, dir string) error {
	sum, err := os.ReadFile(filepath.Join(cache, "cache", "download", filepath.FromSlash(path(dir)), "@v", r.version+".ziphash"))
	if err != nil {
		return err
	}
	line := path(dir) + " " + r.version + " " + strings.TrimSpace(string(sum)) + "\n"
	for _, other := range r.modules {
		m, err := r.edit(other, "-json")
		if err != nil {
			return err
		}
		for _, q := range m.Require {
			if q.Path != path(dir) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(r.clone, other, "go.sum"))
			if err != nil {
				return err
			}
			if !strings.Contains(string(text), line) {
				return fmt.Errorf("%s/go.sum has not %s", other, strings.TrimSpace(line))
			}
		}
	}
	return nil
}

// install installs the command as a user does, and asks it for its version.
func (r *release) install(proxy, bin string) error {
	env := []string{
		"GOBIN=" + bin, "GONOPROXY=none",
		"GOPROXY=file://" + filepath.ToSlash(proxy) + "," + r.thirdParty(),
	}
	if _, err := r.goTool(filepath.Join(filepath.Dir(r.clone), "installed"), env, "install", module+"/cmd/dlock@"+r.version); err != nil {
		return err
	}
	out, err := exec.CommandContext(r.ctx, filepath.Join(bin, "dlock"), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), r.version) {
		return fmt.Errorf("dlock --version says %q (%v), want %s", out, err, r.version)
	}
	return nil
}

// take takes the tags and the changelog over.
func (r *release) take() error {
	refs := []string{"fetch", "-q", r.clone}
	for _, tag := range r.tags() {
		refs = append(refs, "refs/tags/"+tag+":refs/tags/"+tag)
	}
	if _, err := r.git(r.repo, refs...); err != nil {
		return err
	}
	if _, err := r.git(r.repo, "fetch", "-q", r.clone, kept); err != nil {
		return err
	}
	_, err := r.git(r.repo, "merge", "-q", "--ff-only", "FETCH_HEAD")
	return err
}

// commit commits what changed, if anything did.
func (r *release) commit(message string) error {
	if _, err := r.git(r.clone, "add", "--all"); err != nil {
		return err
	}
	_, err := r.git(r.clone, "commit", "-q", "--allow-empty", "--message", message)
	return err
}

// git runs git in a folder and returns what it says.
func (r *release) git(dir string, args ...string) (string, error) {
	return output(exec.CommandContext(r.ctx, "git", append([]string{"-C", dir}, args...)...))
}

// edit runs go mod edit on a module of the clone; with -json it returns what the module asks for.
func (r *release) edit(dir string, args ...string) (m mod, err error) {
	cmd := exec.CommandContext(r.ctx, "go", append([]string{"mod", "edit"}, args...)...)
	cmd.Dir = filepath.Join(r.clone, dir)
	out, err := output(cmd)
	if err == nil && slices.Contains(args, "-json") {
		err = json.Unmarshal([]byte(out), &m)
	}
	return m, err
}

// goTool runs go outside of every module, with a module cache. Modules of this repository come from
// the clone and its tags, whatever the hosting has; all others from where they always do.
func (r *release) goTool(cache string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(r.ctx, "go", args...)
	cmd.Dir = filepath.Dir(r.clone)
	cmd.Env = append(os.Environ(),
		"GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOMODCACHE="+cache, "GOPROXY="+r.thirdParty(),
		"GOPRIVATE=", "GONOPROXY="+module, "GONOSUMDB="+module, "GOVCS="+module+":git",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+filepath.ToSlash(r.clone)+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+module)
	cmd.Env = append(cmd.Env, env...)
	return output(cmd)
}

// thirdParty is where other modules come from: what was downloaded once is not downloaded again.
func (r *release) thirdParty() string {
	out, err := exec.CommandContext(r.ctx, "go", "env", "GOMODCACHE", "GOPROXY").Output()
	cache, proxy, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || proxy == "" {
		return "direct"
	}
	return "file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")) + "," + proxy
}

// output runs a command and returns what it prints; an error has what it complained of.
func output(cmd *exec.Cmd) (string, error) {
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
