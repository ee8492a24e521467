package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// least runs the laws with the least versions of the client libraries that the drivers ask for. All
// other runs of them have the newest, which the module of the services asks for.
func (c *check) least() step {
	s := c.test(services, []string{"./..."}, "-race", "-count=1", "-p=4", "-run=Conformance", "-modfile="+c.leastMod())
	run := s.run
	s.name = "laws with the least client libraries"
	s.run = func(out io.Writer) error {
		if err := c.writeLeast(out); err != nil {
			return err
		}
		return run(out)
	}
	return s
}

// leastMod is the go.mod of that run.
func (c *check) leastMod() string {
	return filepath.Join(filepath.Dir(c.report), filepath.Base(c.report)+".mod")
}

// writeLeast writes it: that of the services, with what the drivers ask for in place of all newer
// versions. The modules of one repository go together, so those that the drivers ask for
// indirectly are replaced too.
func (c *check) writeLeast(out io.Writer) error {
	mod, err := os.ReadFile(filepath.Join(services, "go.mod"))
	if err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(services, "go.sum"))
	if err != nil {
		return err
	}
	drivers, err := filepath.Glob("driver/*/go.mod")
	if err != nil {
		return err
	}
	for _, d := range drivers {
		if filepath.Base(filepath.Dir(d)) == "all" {
			continue
		}
		var text bytes.Buffer
		if err := c.command(".", &text, "go", "mod", "edit", "-json", d); err != nil {
			fmt.Fprint(out, text.String())
			return err
		}
		var m struct {
			Require []struct {
				Path, Version string
				Indirect      bool
			}
		}
		if err := json.Unmarshal(text.Bytes(), &m); err != nil {
			return err
		}
		for _, r := range m.Require {
			if !strings.HasPrefix(r.Path, "github.com/dlock-go/") && (!r.Indirect || strings.HasPrefix(r.Path, "go.etcd.io/")) {
				mod = fmt.Appendf(mod, "\nreplace %s => %s %s\n", r.Path, r.Path, r.Version)
			}
		}
		sums, err := os.ReadFile(strings.TrimSuffix(d, "mod") + "sum")
		if err != nil {
			return err
		}
		sum = append(sum, sums...)
	}
	name := c.leastMod()
	if err := os.WriteFile(name, mod, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(strings.TrimSuffix(name, "mod")+"sum", sum, 0o600); err != nil {
		return err
	}
	return c.command(services, out, "go", "mod", "tidy", "-modfile="+name)
}
