package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// glossary has the meanings of type names, in any case, and the packages that may have such a type.
// Other packages need another name: one word with two meanings is misread.
var glossary = map[string]struct {
	meaning  string
	packages []string
}{
	"request":    {"what a client sends to a queue", []string{"driver", "dlock"}},
	"entry":      {"a request as it stands in a queue", []string{"driver", "memory", "file", "watch", "ui"}},
	"ownRequest": {"what a driver knows about a request of its own client", []string{"kit", "file", "redis", "redlock", "mysql", "postgres", "zookeeper", "etcd", "adapt"}},
	"queue":      {"the requests of one name", []string{"driver", "dlock", "memory", "file", "etcd", "watch"}},
	"nameState":  {"what a client knows about a name while it has requests there", []string{"mysql", "postgres", "etcd"}},
}

// settling has the names that may contain "settle". It has one meaning: to determine the outcome of
// a call that is not known.
var settling = []string{"Unsettled", "unsettled"}

// TestWords holds that types are named as the glossary in CONTRIBUTING.md says.
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
					t.Errorf("%s: %s: to settle is to determine the outcome of a call", fset.Position(n.Pos()), n.Name)
				}
			}
			return true
		})
	}, ".go")
	for word, g := range glossary {
		for _, p := range g.packages {
			if !seen[word+" in "+p] {
				t.Errorf("package %s has no %s: the glossary need not list it", p, word)
			}
		}
	}
}
