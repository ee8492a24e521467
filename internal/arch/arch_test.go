// Package arch tests the rules of the code base that the compiler does not check: which imports are
// allowed, what every driver must have, and that every exported name has a comment.
package arch

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/dlock-go/dlock"
	root   = "../.."
)

// pkg is the output of go list for a package.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	Deps       []string
}

// modules are the folders of the modules that have packages, from the root.
func modules(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.Name() == "go.mod" && !strings.HasSuffix(filepath.Dir(path), "internal/tools"):
			dir, err := filepath.Rel(root, filepath.Dir(path))
			dirs = append(dirs, filepath.ToSlash(dir))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// TestTheWorkspaceHasAllModules: make test runs the modules that go.work lists.
func TestTheWorkspaceHasAllModules(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "work", "edit", "-json", "go.work")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var work struct{ Use []struct{ DiskPath string } }
	if err := json.Unmarshal(out, &work); err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, u := range work.Use {
		listed = append(listed, filepath.ToSlash(filepath.Clean(u.DiskPath)))
	}
	found := modules(t)
	slices.Sort(listed)
	slices.Sort(found)
	if !slices.Equal(listed, found) {
		t.Errorf("go.work lists the modules %q, and there are %q", listed, found)
	}
}

// list runs go list with the given patterns in a module.
func list(t *testing.T, dir string, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Standard,Deps"}, args...)...)
	cmd.Dir = filepath.Join(root, dir)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var ps []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}

// clients are the modules that each driver may depend on; a driver that is not listed may depend on
// the standard library only.
var clients = map[string][]string{
	"etcd": {
		"go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/client/pkg/v3", "go.etcd.io/etcd/api/v3", "google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto",
		"github.com/grpc-ecosystem/grpc-gateway/v2", "github.com/golang/protobuf", "github.com/coreos/go-semver", "github.com/coreos/go-systemd/v22",
		"go.uber.org/zap", "go.uber.org/multierr", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/text",
	},
	"mysql":     {"github.com/go-sql-driver/mysql", "filippo.io/edwards25519"},
	"postgres":  {"github.com/jackc/pgx/v5", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/puddle/v2", "golang.org/x/sync", "golang.org/x/text"},
	"redis":     {"github.com/redis/go-redis/v9", "github.com/cespare/xxhash/v2", "github.com/zeebo/xxh3", "github.com/klauspost/cpuid/v2", "go.uber.org/atomic", "golang.org/x/sys"},
	"zookeeper": {"github.com/go-zookeeper/zk"},
}

// TestImports holds which imports are allowed. The contract imports nothing of this repository; a
// driver imports the contract and its own client library; the library and its trust engine
// (internal/hold) import the contract alone; and no package imports a driver, which the user
// chooses.
func TestImports(t *testing.T) {
	for _, m := range modules(t) {
		if m == "." || strings.HasPrefix(m, "driver/") {
			imports(t, m)
		}
	}
}

func imports(t *testing.T, dir string) {
	all := list(t, dir, "-deps", "./...")
	standard := map[string]bool{}
	for _, p := range all {
		standard[p.ImportPath] = p.Standard
	}
	contract := func(path string) bool {
		return path == module+"/driver" || path == module+"/driver/adapt" || under(path, module+"/driver/internal") || path == module+"/internal/background" || path == module+"/internal/alarm"
	}
	for _, p := range all {
		if p.Standard || !under(p.ImportPath, module) {
			continue
		}
		d := driverOf(p.ImportPath)
		for _, i := range p.Deps {
			ours := under(i, module)
			switch {
			case standard[i] || d == "all":
			case !ours && !slices.ContainsFunc(clients[d], func(m string) bool { return under(i, m) }):
				t.Errorf("%s depends on %s: only the driver of a service may depend on its client library; the list is in this test", p.ImportPath, i)
			case ours && contract(p.ImportPath) && !contract(i):
				t.Errorf("%s depends on %s: the contract depends on nothing here", p.ImportPath, i)
			case ours && p.ImportPath == module+"/internal/hold" && i != module+"/driver" && i != module+"/internal/background":
				t.Errorf("%s depends on %s: the trust engine depends on the contract alone", p.ImportPath, i)
			case ours && p.ImportPath == module+"/driver/memory" && i != module+"/driver":
				t.Errorf("%s depends on %s: it is an example for authors of drivers, which cannot import internal packages", p.ImportPath, i)
			case p.ImportPath == module+"/driver/redis/fenceredis" && ours && driverOf(i) == "":
				// no part of the driver: it has only the client library in common with it
			case ours && d != "" && !contract(i) && driverOf(i) != d && !((d == "mysql" || d == "postgres") && i == module+"/migrations"):
				t.Errorf("%s depends on %s: a driver depends on the contract alone", p.ImportPath, i)
			case p.ImportPath == module+"/driver/redis/redlock" && i == module+"/driver/redis":
				t.Errorf("%s depends on %s: they share internal packages alone, and formats of a URL are opened by driver/redis", p.ImportPath, i)
			case i == module+"/driver/adapt" && (d == "mysql" || d == "postgres" || d == "redis"):
				// it makes backends of the locks of other software
			case driverOf(i) != "" && driverOf(i) != d && !(p.ImportPath == module+"/dlocktest" && i == module+"/driver/memory"):
				t.Errorf("%s depends on the driver %s: users choose their drivers", p.ImportPath, i)
			}
		}
	}
}

// TestProgramsDoNotLinkTesting holds that the laws, which the command runs too, do not make it link
// package testing, which is for tests and registers flags.
func TestProgramsDoNotLinkTesting(t *testing.T) {
	for dir, packages := range map[string][]string{".": {"./conformance", "./conformance/netfault"}, "cmd/dlock": {"."}} {
		for _, p := range list(t, dir, append([]string{"-deps"}, packages...)...) {
			for _, i := range p.Deps {
				if under(p.ImportPath, module) && (under(i, "testing") || under(i, "pgregory.net/rapid")) {
					t.Errorf("%s depends on %s: only tests may", p.ImportPath, i)
				}
			}
		}
	}
}

// under reports whether a package is that one or in its folder.
func under(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// driverOf is the driver that a package belongs to, or "".
func driverOf(path string) string {
	rest, ok := strings.CutPrefix(path, module+"/driver/")
	d, _, _ := strings.Cut(rest, "/")
	if !ok || d == "internal" {
		return ""
	}
	return d
}

// driverDirs returns the folders of drivers, below driver. The last part of each is the driver's
// name everywhere else.
func driverDirs(t *testing.T) []string {
	t.Helper()
	es, err := os.ReadDir(filepath.Join(root, "driver"))
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, e := range es {
		if e.IsDir() && e.Name() != "all" && e.Name() != "internal" && e.Name() != "testdata" {
			dirs = append(dirs, e.Name())
		}
	}
	if len(dirs) < 2 {
		t.Fatalf("found the drivers %v only", dirs)
	}
	return append(dirs, "redis/redlock")
}

func TestEveryDriverHasItsParts(t *testing.T) {
	fset := token.NewFileSet()
	calls := func(pattern string) bool { // a call of conformance.Run in a test file
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			src, err := parser.ParseFile(fset, f, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			found := false
			ast.Inspect(src, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Run" {
					x, ok := s.X.(*ast.Ident)
					found = found || ok && x.Name == "conformance"
				}
				return true
			})
			if found {
				return true
			}
		}
		return false
	}
	every, err := os.ReadFile(filepath.Join(root, "driver/all/all.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range driverDirs(t) {
		name := filepath.Base(d)
		if !calls("driver/"+d+"/*_test.go") && !calls("conformance/containers/"+name+"/*_test.go") {
			t.Errorf("driver/%s has no conformance run: neither in its own folder nor in conformance/containers/%s", d, name)
		}
		if d == "adapt" { // it has no scheme, and no page: it is not the driver of a service
			continue
		}
		if !strings.Contains(string(every), module+"/driver/"+d+`"`) {
			t.Errorf("driver/all does not import driver/%s", d)
		}
		page, err := os.ReadFile(filepath.Join(root, "docs", name+".md"))
		if err != nil {
			t.Errorf("driver/%s has no page in docs", d)
			continue
		}
		headings := []string{"## Example", "## URL", "## Guarantees", "## Limits", "## Protocol", "## Costs", "## Operating it"}
		for _, h := range headings {
			if !strings.Contains(string(page), "\n"+h+"\n") {
				t.Errorf("docs/%s.md has no heading %q", name, h)
			}
		}
	}
}

// TestExportedNamesSayWhatTheyPromise holds that every exported name and package outside tests and
// commands has a comment.
func TestExportedNamesSayWhatTheyPromise(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || e.Name() == "cmd"):
			return filepath.SkipDir
		case e.IsDir():
			documented(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func documented(t *testing.T, dir string) {
	fset := token.NewFileSet()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	packages, n := map[string]bool{}, 0
	for _, path := range files {
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		packages[strings.TrimSuffix(f.Name.Name, "_test")] = packages[strings.TrimSuffix(f.Name.Name, "_test")] || f.Doc != nil
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		n++
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv)) && d.Doc == nil {
					t.Errorf("%s: %s has no comment", fset.Position(d.Pos()), d.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					specDocumented(t, fset, d, s)
				}
			}
		}
	}
	for name, ok := range packages {
		if !ok && n > 0 {
			t.Errorf("package %s in %s has no comment", name, dir)
		}
	}
}

func specDocumented(t *testing.T, fset *token.FileSet, d *ast.GenDecl, s ast.Spec) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		if d.Doc == nil && s.Doc == nil {
			t.Errorf("%s: %s has no comment", fset.Position(s.Pos()), s.Name)
		}
	case *ast.ValueSpec:
		if s.Names[0].IsExported() && s.Doc == nil && s.Comment == nil && (d.Doc == nil || len(d.Specs) > 1) {
			t.Errorf("%s: %s has no comment", fset.Position(s.Pos()), s.Names[0])
		}
	}
}

func exportedReceiver(r *ast.FieldList) bool {
	typ := r.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}
