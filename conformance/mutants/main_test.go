package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutantsFit: each mutant can be planted, and its test is there. Whether that test catches it
// is what the command finds out.
func TestMutantsFit(t *testing.T) {
	names := map[string]bool{}
	for _, m := range all() {
		if names[m.name] {
			t.Errorf("%s: the name is used twice", m.name)
		}
		names[m.name] = true
		text, err := os.ReadFile(filepath.Join("../..", m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if bad, err := m.apply(string(text)); err != nil {
			t.Errorf("%s: %v", m.name, err)
		} else if bad == string(text) {
			t.Errorf("%s: nothing is changed", m.name)
		}
		test, _, _ := strings.Cut(m.test, "/")
		files, err := filepath.Glob(filepath.Join("../..", m.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(text), "func "+test+"(")
		}
		if !found {
			t.Errorf("%s: there is no test %s in %s", m.name, test, m.pkg)
		}
	}
}

func TestFirstFailed(t *testing.T) {
	const out = `--- FAIL: TestConformance (1.00s)
    --- FAIL: TestConformance/memory (1.00s)
        --- FAIL: TestConformance/memory/one-holder (0.10s)
FAIL`
	for test, want := range map[string]string{
		"TestConformance/memory/one-holder": "TestConformance/memory/one-holder",
		"TestConformance":                   "TestConformance/memory/one-holder",
		"TestConformance/memory/order":      "",
		"TestOther":                         "",
	} {
		if got := firstFailed(out, test); got != want {
			t.Errorf("of %s: %q, want %q", test, got, want)
		}
	}
}
