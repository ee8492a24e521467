package arch

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlock-go/dlock/internal/race"
)

// widest is the number of columns of comments and pages.
const widest = 100

// walk calls fn for each file of the repository with one of the endings, with its path from the
// root.
func walk(t *testing.T, fn func(path string, text []byte), endings ...string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || !slices.Contains(endings, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		fn(filepath.ToSlash(rel), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func columns(line string) int {
	return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
}

// directive is a comment for a tool, and link one that is only an address: neither can be broken.
var (
	directive = regexp.MustCompile(`^//(go:|line |nolint|export )`)
	link      = regexp.MustCompile(`^\S*https?://\S+$`)
)

// TestCommentsAreNarrow holds that comments have at most 100 columns. A trailing comment counts
// with the code before it, unless the code alone is wider.
func TestCommentsAreNarrow(t *testing.T) {
	walk(t, func(path string, text []byte) {
		lines := strings.Split(string(text), "\n")
		fset := token.NewFileSet()
		file := fset.AddFile(path, -1, len(text))
		var s scanner.Scanner
		s.Init(file, text, nil, scanner.ScanComments)
		for {
			pos, tok, lit := s.Scan()
			if tok == token.EOF {
				return
			}
			if tok != token.COMMENT || directive.MatchString(lit) {
				continue
			}
			at := fset.Position(pos)
			for i := range strings.Count(lit, "\n") + 1 {
				line := lines[at.Line-1+i]
				before := line[:min(at.Column-1, len(line))]
				if i > 0 {
					before = ""
				}
				if columns(line) <= widest || columns(strings.TrimRight(before, " \t")) > widest || link.MatchString(strings.TrimLeft(line, "/ \t")) {
					continue
				}
				t.Errorf("%s:%d: %d columns, want at most %d", path, at.Line+i, columns(line), widest)
			}
		}
	}, ".go")
}

// TestPagesAreNarrow holds that the text of pages has at most 100 columns. Tables, code and lines
// with a link, which cannot be broken, may have more.
func TestPagesAreNarrow(t *testing.T) {
	walk(t, func(path string, text []byte) {
		code := false
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			if code || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") && !strings.HasPrefix(strings.TrimSpace(line), "- ") || strings.Contains(line, "](") || strings.Contains(line, "://") {
				continue
			}
			if columns(line) > widest {
				t.Errorf("%s:%d: %d columns, want at most %d", path, i+1, columns(line), widest)
			}
		}
	}, ".md")
}

// importPaths are the paths of the packages that pages use, by name.
var importPaths = map[string]string{
	"dlock": module, "driver": module + "/driver", "conformance": module + "/conformance", "migrations": module + "/migrations",
	"memory": module + "/driver/memory", "file": module + "/driver/file", "mysql": module + "/driver/mysql", "postgres": module + "/driver/postgres",
	"zookeeper": module + "/driver/zookeeper", "etcd": module + "/driver/etcd", "redlock": module + "/driver/redis/redlock",
	"redisdriver": module + "/driver/redis", "dlocktest": module + "/dlocktest", "dlockotel": module + "/otel", "dlockprometheus": module + "/prometheus",
	"fence": module + "/fence", "fenceredis": module + "/driver/redis/fenceredis", "dlockhttp": module + "/dlockhttp", "dlockgrpc": module + "/dlockgrpc",
	"shedlock": module + "/examples/shedlock", "tablelock": module + "/examples/tablelock",
	"grpc": "google.golang.org/grpc", "prometheus": "github.com/prometheus/client_golang/prometheus", "strings": "strings",
	"redis": "github.com/redis/go-redis/v9", "zk": "github.com/go-zookeeper/zk", "clientv3": "go.etcd.io/etcd/client/v3",
	"concurrency": "go.etcd.io/etcd/client/v3/concurrency", "redsync": redsync,
	"sql": "database/sql", "context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "slog": "log/slog", "time": "time", "os": "os",
	"testing": "testing", "http": "net/http", "exec": "os/exec", "tls": "crypto/tls", "sync": "sync", "synctest": "testing/synctest",
}

// redsync is a module that only pages and the tests of services use, of which the latter have the
// version.
const redsync = "github.com/go-redsync/redsync/v4"

// TestSnippetsCompile compiles the Go blocks of all pages. A block is a whole file, or declarations
// beginning with its imports, or statements, which then stand in a function that has a ctx and a
// client, and returns an error.
func TestSnippetsCompile(t *testing.T) {
	dir := t.TempDir()
	n := 0
	walk(t, func(path string, text []byte) {
		var block []string
		begin := 0
		for i, line := range strings.Split(string(text), "\n") {
			switch {
			case begin == 0 && strings.TrimSpace(line) == "```go":
				begin, block = i+2, nil
			case begin != 0 && strings.TrimSpace(line) == "```":
				n++
				sub := filepath.Join(dir, fmt.Sprintf("snippet%d", n))
				if err := os.Mkdir(sub, 0o700); err != nil {
					t.Fatal(err)
				}
				src := snippet(t, fmt.Sprintf("%s:%d", path, begin), strings.Join(block, "\n"))
				if err := os.WriteFile(filepath.Join(sub, "snippet.go"), []byte(src), 0o600); err != nil {
					t.Fatal(err)
				}
				begin = 0
			case begin != 0:
				block = append(block, line)
			}
		}
	}, ".md")
	if n == 0 {
		t.Fatal("no page has a Go block")
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(everyDriver(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-e", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath -mod=mod "+race.Flag, "GOSUMDB=off")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return
	}
	bad := false
	for line := range strings.Lines(string(out)) {
		// a page may declare a variable and leave its use to the reader
		if strings.Contains(line, "declared and not used") || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "go: downloading ") {
			continue
		}
		bad = true
		t.Errorf("%s", strings.TrimSpace(line))
	}
	if !bad && len(out) == 0 {
		t.Error(err)
	}
}

// everyDriver returns a go.mod with all modules of this checkout that pages use, and what they
// require.
func everyDriver(t *testing.T) string {
	t.Helper()
	text := "module example.com/pages\n\ngo 1.26.0\n"
	for _, m := range modules(t) {
		tests := m == "conformance/containers"
		if m != "." && m != "otel" && m != "prometheus" && m != "dlockgrpc" && m != "examples" && !tests && !strings.HasPrefix(m, "driver/") {
			continue
		}
		dir, err := filepath.Abs(filepath.Join(root, m))
		if err != nil {
			t.Fatal(err)
		}
		if path := strings.TrimSuffix(module+"/"+m, "/."); !tests {
			text += fmt.Sprintf("\nrequire %s v0.0.0\nreplace %s => %s\n", path, path, dir)
		}
		var mod struct {
			Require []struct{ Path, Version string }
		}
		cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &mod); err != nil {
			t.Fatal(err)
		}
		for _, r := range mod.Require {
			if r.Path == redsync || !tests && !strings.HasPrefix(r.Path, module) {
				text += fmt.Sprintf("require %s %s\n", r.Path, r.Version)
			}
		}
	}
	return text
}

// snippet makes a file of a block of a page.
func snippet(t *testing.T, place, block string) string {
	t.Helper()
	line := "//line " + place + "\n"
	if regexp.MustCompile(`(?m)^package `).MatchString(block) {
		return line + block + "\n"
	}
	head := ""
	if strings.HasPrefix(strings.TrimSpace(block), "import ") {
		head = block
		block = ""
		if strings.HasPrefix(strings.TrimSpace(head), "import (") {
			if i := strings.Index(head, "\n)"); i >= 0 {
				head, block = head[:i+2], head[i+2:]
			}
		} else if i := strings.Index(head, "\n"); i >= 0 {
			head, block = head[:i], head[i:]
		}
	}
	body := "var client *dlock.Client\n\nfunc _(ctx context.Context) error {\n" + line + block + "\nreturn nil\n}\n"
	if regexp.MustCompile(`(?m)^(func|type) `).MatchString(block) {
		body = line + block + "\n"
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+body, 0)
	if err != nil {
		t.Errorf("%s: %v", place, err)
		return "package p\n"
	}
	used := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil {
				used[x.Name] = true
			}
		}
		return true
	})
	src := "package p\n" + line + head + "\n"
	for name, path := range importPaths {
		if used[name] && !strings.Contains(head, path+`"`) {
			src += fmt.Sprintf("import %s %q\n", name, path)
		}
	}
	return src + body
}

// message matches a log message of the library.
var message = regexp.MustCompile(`\.(?:Debug|Info|Warn|Error|Log)\([^"\n]*"(dlock: [^"]+)"`)

// TestLogIsOnItsPage holds that the page on observing has each message of the log.
func TestLogIsOnItsPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/observing.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, pattern := range []string{"*.go", "internal/hold/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range message.FindAllStringSubmatch(string(text), -1) {
				if n++; !strings.HasSuffix(f, "_test.go") && !strings.Contains(string(page), "| "+m[1]+" |") {
					t.Errorf("docs/observing.md does not have the message %q of %s", m[1], f)
				}
			}
		}
	}
	if n < 8 {
		t.Errorf("found %d messages", n)
	}
}

// TestScriptsAreNarrow holds that lines with a comment in SQL and Lua have at most 100 columns, as
// those of Go have.
func TestScriptsAreNarrow(t *testing.T) {
	n := 0
	walk(t, func(path string, text []byte) {
		for i, line := range strings.Split(string(text), "\n") {
			if !strings.Contains(line, "--") {
				continue
			}
			if n++; columns(line) > widest {
				t.Errorf("%s:%d: %d columns, want at most %d", path, i+1, columns(line), widest)
			}
		}
	}, ".sql", ".lua")
	if n == 0 {
		t.Error("no comment was found")
	}
}
