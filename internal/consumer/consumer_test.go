// Package consumer tests the effect of each driver on the module list of a program: which modules
// it adds, and that it upgrades only modules that the driver needs.
package consumer

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/internal/race"
)

var update = flag.Bool("update", false, "write the lists in testdata")

const module = "github.com/dlock-go/dlock"

// kinds are the programs: the packages that each one imports, and the modules that it requires.
var kinds = []struct {
	name     string
	packages []string
	modules  []string // of this repository, the root aside
}{
	{"library", []string{"driver/memory", "driver/file", "dlockhttp", "fence"}, nil},
	{"etcd", []string{"driver/etcd"}, []string{"driver/etcd"}},
	{"mysql", []string{"driver/mysql"}, []string{"driver/mysql"}},
	{"postgres", []string{"driver/postgres"}, []string{"driver/postgres"}},
	{"redis", []string{"driver/redis", "driver/redis/redlock"}, []string{"driver/redis"}},
	{"zookeeper", []string{"driver/zookeeper"}, []string{"driver/zookeeper"}},
	{"dlockgrpc", []string{"dlockgrpc"}, []string{"dlockgrpc"}},
	{"otel", []string{"otel"}, []string{"otel"}},
	{"prometheus", []string{"prometheus"}, []string{"prometheus"}},
	{"all", []string{"driver/all"}, []string{"driver/all", "driver/etcd", "driver/mysql", "driver/postgres", "driver/redis", "driver/zookeeper"}},
}

// old are the client libraries of a program that was not upgraded for years. Each is at most as new
// as the minimum of its driver.
var old = map[string]string{
	"github.com/go-sql-driver/mysql": "v1.5.0",
	"github.com/go-zookeeper/zk":     "v1.0.2",
	"github.com/jackc/pgx/v5":        "v5.0.0",
	"github.com/redis/go-redis/v9":   "v9.0.2",
	"go.etcd.io/etcd/api/v3":         "v3.5.0",
	"go.etcd.io/etcd/client/v3":      "v3.5.0",
	"google.golang.org/grpc":         "v1.38.0",
	"go.uber.org/zap":                "v1.17.0",
}

// TestModulesOfAProgram holds the list of modules of a program that uses one driver. A module that
// is added to a list is added to the builds of users, so a change has to be a decision. Run with
// -update to accept it.
func TestModulesOfAProgram(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			dir := program(t, k.packages, k.modules, nil)
			run(t, dir, "go", "build", "./...")
			got := strings.Join(list(t, dir), "\n") + "\n"
			golden := filepath.Join("testdata", k.name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the modules of a program that imports %v are\n%s\n%s has\n%s\ngo test ./internal/consumer -update writes it", k.packages, got, golden, want)
			}
		})
	}
}

// TestNothingIsMoved holds that a program keeps the versions of its client libraries: those of
// other drivers at any version, and that of the imported driver from its minimum on.
func TestNothingIsMoved(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			asked := map[string]string{}
			for lib, version := range old {
				asked[lib] = version
			}
			for _, m := range k.modules {
				for lib, version := range requirements(t, m) {
					asked[lib] = version
				}
			}
			dir := program(t, k.packages, k.modules, asked)
			for _, line := range list(t, dir) {
				lib, version, _ := strings.Cut(line, " ")
				if want, ok := asked[lib]; ok && version != want {
					t.Errorf("with %v, %s is upgraded from %s to %s", k.packages, lib, want, version)
				}
			}
		})
	}
}

// TestNoClientOfAnotherDriver holds that a program which imports one driver has no client library
// of another in its list.
func TestNoClientOfAnotherDriver(t *testing.T) {
	for _, k := range kinds {
		if k.name == "all" {
			continue
		}
		own := map[string]string{}
		for _, m := range k.modules {
			own = requirements(t, m)
		}
		golden, err := os.ReadFile(filepath.Join("testdata", k.name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(golden)) {
			lib, _, _ := strings.Cut(line, " ")
			if _, client := old[lib]; client && own[lib] == "" {
				t.Errorf("a program that imports %v gets %s", k.packages, lib)
			}
		}
	}
}

// requirements are the modules that a module of this repository requires directly, without those of
// this repository.
func requirements(t *testing.T, dir string) map[string]string {
	t.Helper()
	var mod struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
	}
	out := run(t, filepath.Join(root(t), dir), "go", "mod", "edit", "-json")
	if err := json.Unmarshal([]byte(out), &mod); err != nil {
		t.Fatal(err)
	}
	libs := map[string]string{}
	for _, r := range mod.Require {
		if !r.Indirect && r.Path != module && !strings.HasPrefix(r.Path, module+"/") {
			libs[r.Path] = r.Version
		}
	}
	return libs
}

// program writes a module that imports packages of this checkout, and returns its folder.
func program(t *testing.T, packages, modules []string, libs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	mod := "module example.com/program\n\ngo 1.26.0\n"
	for _, m := range append([]string{""}, modules...) {
		// so that the cache of go test knows the file
		if _, err := os.ReadFile(filepath.Join(root(t), m, "go.mod")); err != nil {
			t.Fatal(err)
		}
		path := strings.TrimSuffix(module+"/"+m, "/")
		mod += fmt.Sprintf("\nrequire %s v0.0.0\nreplace %s => %s\n", path, path, filepath.Join(root(t), m))
	}
	for lib, version := range libs {
		mod += fmt.Sprintf("\nrequire %s %s\n", lib, version)
	}
	src := "// Package program uses dlock.\npackage program\n\nimport (\n\t_ \"" + module + "\"\n"
	for _, p := range packages {
		src += "\t_ \"" + module + "/" + p + "\"\n"
	}
	for name, text := range map[string]string{"go.mod": mod, "program.go": src + ")\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// list is go list -m all, without the program itself and the checkout's folder.
func list(t *testing.T, dir string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(run(t, dir, "go", "list", "-m", "all")), "\n")[1:]
	for i, line := range lines {
		lines[i], _, _ = strings.Cut(line, " v0.0.0 => ")
	}
	slices.Sort(lines)
	return lines
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a program in a folder. The module there has no go.sum, and GOSUMDB=off because none is
// needed.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath -mod=mod "+race.Flag, "GOSUMDB=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}
