package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// glossary has what names of types mean, in whatever case, and the packages that have one. In all
// other packages something else has to be found: one word for two things is read wrongly.
var glossary = map[string]struct {
	meaning  string
	packages []string
}{
	"request":    {"what a client asks of a queue", []string{"driver", "dlock"}},
	"entry":      {"a request as it stands in a queue", []string{"driver", "memory", "file", "watch", "ui"}},
	"ownRequest": {"what a driver knows of a request of its own client", []string{"kit", "file", "redis", "redlock", "mysql", "zookeeper", "etcd"}},
	"queue":      {"what stands under one name", []string{"driver", "dlock", "memory", "file", "etcd", "watch"}},
	"nameState":  {"what a client knows of a name while requests of it stand there", []string{"mysql", "etcd"}},
}

// settling has the names that may have "settle" in them. It means one thing: to find out what
// became of a call whose outcome is not known.
var settling = []string{"Unsettled", "unsettled"}

// TestWords holds that types are called what the glossary in CONTRIBUTING.md says.
func TestWords(t *testing.T) {
	seen := map[string]bool{}
	walk(t, func(path string, text []byte) {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				for word, g := range glossary {
					switch {
					case !strings.EqualFold(n.Name.Name, word) || strings.HasSuffix(path, "_test.go"):
					case slices.Contains(g.packages, f.Name.Name):
						seen[word+" in "+f.Name.Name] = true
					default:
						t.Errorf("%s: %s is %s, and this package has none: it needs another name", fset.Position(n.Pos()), n.Name, g.meaning)
					}
				}
			case *ast.Ident:
				if strings.Contains(strings.ToLower(n.Name), "settle") && !slices.Contains(settling, n.Name) && !strings.HasPrefix(n.Name, "Test") {
					t.Errorf("%s: %s: to settle is to find out what became of a call", fset.Position(n.Pos()), n.Name)
				}
			}
			return true
		})
	}, ".go")
	for word, g := range glossary {
		for _, p := range g.packages {
			if !seen[word+" in "+p] {
				t.Errorf("package %s has no %s: the glossary need not say so", p, word)
			}
		}
	}
}
