package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// places are the files in which every driver has its parts, so that all drivers have one layout.
var places = map[string]string{
	"Acquire": "acquire.go", "Renew": "renew.go", "Release": "release.go",
	"Inspect": "inspect.go", "Break": "inspect.go", "List": "inspect.go", "Raise": "raise.go",
	"New": "backend.go", "Backend": "backend.go", "Options": "backend.go",
	"Capabilities": "backend.go", "Notify": "backend.go", "Close": "backend.go",
	"Register": "open.go", "package": "doc.go",
}

// required are the parts that every driver must have.
var required = []string{"Acquire", "Renew", "Release", "Inspect", "New", "Backend", "Options", "Capabilities", "Close", "Register", "package"}

// TestSkeleton holds that all drivers have one layout: each part in its file, a file for waiting,
// and the same form of constructor.
func TestSkeleton(t *testing.T) {
	for _, d := range driverDirs(t) {
		found := map[string]string{}
		files, err := filepath.Glob(filepath.Join(root, "driver", d, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		fset, waits := token.NewFileSet(), false
		for _, path := range files {
			name := filepath.Base(path)
			// for systems that the driver does not know
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_other.go") {
				continue
			}
			waits = waits || name == "wait.go"
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range parts(f) {
				if want := places[part]; want != "" && name != want {
					t.Errorf("driver/%s has %s in %s, want it in %s", d, part, name, want)
				}
				found[part] = name
			}
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "New" && !constructs(fn.Type) {
					t.Errorf("%s: want New(…, Options) (*Backend, error)", fset.Position(fn.Pos()))
				}
			}
		}
		for _, part := range required {
			if part == "Register" && d == "adapt" { // it is not opened by a URL
				continue
			}
			if found[part] == "" {
				t.Errorf("driver/%s has no %s in %s", d, part, places[part])
			}
		}
		if !waits && d != "redis/redlock" { // which has no queue: its Acquire retries
			t.Errorf("driver/%s has no wait.go", d)
		}
	}
}

// parts are the parts of a driver that a file has.
func parts(f *ast.File) (names []string) {
	if f.Doc != nil {
		names = append(names, "package")
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name == "New" || d.Recv != nil && receiverName(d.Recv) == "Backend" {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && (s.Name.Name == "Backend" || s.Name.Name == "Options") {
					names = append(names, s.Name.Name)
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Register" {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "driver" {
				names = append(names, "Register")
			}
		}
		return true
	})
	return names
}

func receiverName(r *ast.FieldList) string {
	typ := r.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	id, ok := typ.(*ast.Ident)
	if !ok {
		return ""
	}
	return id.Name
}

// constructs reports whether a function takes Options last and returns a backend and an error.
func constructs(f *ast.FuncType) bool {
	if f.Params.NumFields() == 0 || f.Results.NumFields() != 2 {
		return false
	}
	options, ok := f.Params.List[len(f.Params.List)-1].Type.(*ast.Ident)
	if !ok || options.Name != "Options" {
		return false
	}
	b, ok := f.Results.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	backend, ok := b.X.(*ast.Ident)
	return ok && backend.Name == "Backend"
}
