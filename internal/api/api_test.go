// Package api compares the public names of each module with a list in the folder api. The list is
// what a release promises to keep, and shows what a change adds or removes.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the lists in the folder api")

const (
	module = "github.com/dlock-go/dlock"
	root   = "../.."
)

// TestPublicNames compares the exported names of each module with its list. A line that is removed
// breaks users, also before version 1, so the changelog has to say it. Run with -update to accept a
// change.
func TestPublicNames(t *testing.T) {
	lists := map[string]bool{}
	for _, dir := range modules(t) {
		name := strings.ReplaceAll(dir, "/", "-") + ".txt"
		if dir == "." {
			name = "dlock.txt"
		}
		golden := filepath.Join(root, "api", name)
		got := strings.Join(names(t, dir), "\n") + "\n"
		if got == "\n" {
			continue // a command, and tests
		}
		lists[name] = true
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		had, has := slices.Collect(strings.Lines(string(want))), slices.Collect(strings.Lines(got))
		for _, line := range had {
			if !slices.Contains(has, line) {
				t.Errorf("%s: gone: %s", golden, line)
			}
		}
		for _, line := range has {
			if !slices.Contains(had, line) {
				t.Errorf("%s: new: %s", golden, line)
			}
		}
	}
	files, err := os.ReadDir(filepath.Join(root, "api"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !lists[f.Name()] {
			t.Errorf("api/%s belongs to no module", f.Name())
		}
	}
	if t.Failed() {
		t.Log("go test ./internal/api -update writes the lists")
	}
}

// modules are the folders of the modules that users import.
func modules(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, path)
		dir = filepath.ToSlash(dir)
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") && dir != "." || e.Name() == "testdata" || dir == "internal/tools" || dir == "conformance/containers" || dir == "examples"):
			return filepath.SkipDir
		case e.Name() == "go.mod":
			dirs = append(dirs, filepath.ToSlash(filepath.Dir(dir)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// pkg is the output of go list for a package.
type pkg struct {
	ImportPath, Name, Dir string
	GoFiles               []string
}

// packages are the packages of a module, as they are built for Linux.
func packages(t *testing.T, dir string) (ps []pkg) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,GoFiles", "./...")
	cmd.Dir = filepath.Join(root, dir)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOOS=linux", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}

// names are the exported names of a module: those of the packages that users can import.
func names(t *testing.T, dir string) (lines []string) {
	t.Helper()
	for _, p := range packages(t, dir) {
		if p.Name != "main" && !strings.Contains(p.ImportPath+"/", "/internal/") {
			lines = append(lines, exported(t, p)...)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// exported are the exported names of a package, one line each.
func exported(t *testing.T, p pkg) (lines []string) {
	t.Helper()
	fset := token.NewFileSet()
	add := func(parts ...any) {
		line := "package " + strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") + ":"
		if p.ImportPath == module {
			line = "package dlock:"
		}
		for _, part := range parts {
			if text, ok := part.(string); ok {
				line += " " + text
				continue
			}
			ast.Inspect(part.(ast.Node), unnamed)
			var b bytes.Buffer
			if err := printer.Fprint(&b, fset, part); err != nil {
				t.Fatal(err)
			}
			line += " " + strings.Join(strings.Fields(b.String()), " ")
		}
		lines = append(lines, line)
	}
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
					d.Body = nil
					add(d)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					spec(d.Tok, s, add)
				}
			}
		}
	}
	return lines
}

// unnamed removes the names of parameters and receivers, which are not part of the promise.
func unnamed(n ast.Node) bool {
	without := func(list *ast.FieldList) {
		if list == nil {
			return
		}
		var fields []*ast.Field
		for _, f := range list.List {
			for range max(len(f.Names), 1) {
				fields = append(fields, &ast.Field{Type: f.Type})
			}
		}
		list.List = fields
	}
	switch n := n.(type) {
	case *ast.FuncDecl:
		without(n.Recv)
	case *ast.FuncType:
		without(n.Params)
		without(n.Results)
	}
	return true
}

// spec adds the names that a declaration exports, with the types of values.
func spec(tok token.Token, s ast.Spec, add func(parts ...any)) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			switch {
			case !n.IsExported():
			case s.Type != nil:
				add(tok.String(), n, s.Type)
			default:
				add(tok.String(), n)
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		head := []any{"type", s.Name}
		if s.Assign.IsValid() {
			head = append(head, "=")
		}
		switch typ := s.Type.(type) {
		case *ast.StructType:
			add(append(head, "struct")...)
			fields(typ.Fields, append(head, "struct:"), add)
		case *ast.InterfaceType:
			add(append(head, "interface")...)
			fields(typ.Methods, append(head, "interface:"), add)
		default:
			add(append(head, typ)...)
		}
	}
}

// fields adds the exported fields of a struct, or all methods of an interface. An unexported method
// seals it.
func fields(list *ast.FieldList, head []any, add func(parts ...any)) {
	for _, f := range list.List {
		typ := f.Type
		if len(f.Names) == 0 {
			add(append(slices.Clone(head), "embedded", typ)...)
		}
		for _, n := range f.Names {
			_, method := typ.(*ast.FuncType)
			switch {
			case n.IsExported() || method && slices.Contains(head, any("interface:")):
				add(append(slices.Clone(head), n, typ)...)
			}
		}
	}
}

// receiver is the name of the type of a method.
func receiver(typ ast.Expr) string {
	switch typ := typ.(type) {
	case *ast.StarExpr:
		return receiver(typ.X)
	case *ast.IndexExpr:
		return receiver(typ.X)
	case *ast.Ident:
		return typ.Name
	}
	return ""
}

// TestListsOfNames holds the form of the lists.
func TestListsOfNames(t *testing.T) {
	dir := t.TempDir()
	src := `package p
import "io"
type S struct { A, b int; io.Reader }
type I interface { M(x int) error; sealed() }
type hidden struct{}
type Alias = S
type F[T any] func(T) bool
const C, d = 1, 2
var V error
func (s *S) Do(n, m int, _ string) (err error) { return nil }
func (hidden) Do() {}
func do() {}
`
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, line := range exported(t, pkg{ImportPath: module + "/p", Dir: dir, GoFiles: []string{"p.go"}}) {
		got[line] = true
	}
	want := map[string]bool{
		"package p: type S struct": true, "package p: type S struct: A int": true, "package p: type S struct: embedded io.Reader": true,
		"package p: type I interface": true, "package p: type I interface: M func(int) error": true, "package p: type I interface: sealed func()": true,
		"package p: type Alias = S": true, "package p: type F func(T) bool": true, "package p: const C": true, "package p: var V error": true,
		"package p: func (*S) Do(int, int, string) error": true,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
