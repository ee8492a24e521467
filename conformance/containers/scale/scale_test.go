package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/page"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

func TestMain(m *testing.M) { os.Exit(service.Main(m)) }

// TestSmall runs every scenario with a few of everything, on the backends that need no server. What
// is counted has to keep its bounds; the times and the memory of so few say nothing.
func TestSmall(t *testing.T) {
	for _, b := range backends {
		if b.kind != nil {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			z := full.times(0.005)
			z.pause, z.turns = 200*time.Millisecond, 200*time.Millisecond
			r := measure(t.Context(), b, scenarios, z)
			t.Log("\n" + r.text())
			want := len(scenarios)
			if b.alone {
				want -= 2
			}
			if len(r.results) != want {
				t.Errorf("%d scenarios were measured; want %d", len(r.results), want)
			}
			for _, x := range r.results {
				if x.trouble != nil {
					t.Errorf("%s: %v", x.name, x.trouble)
				}
				for _, l := range r.lines(x) {
					if l.missed && l.exact {
						t.Errorf("%s: %s: %s; want %s", x.name, l.title, l.many, l.bound)
					}
				}
			}
		})
	}
}

// TestBounds: a cost that grows misses its bound, and is marked.
func TestBounds(t *testing.T) {
	for _, tt := range []struct {
		bound
		few, many float64
		keeps     bool
	}{
		{bound{}, 1, 1000, true},
		{bound{times: 3}, 1, 3, true},
		{bound{times: 3}, 1, 3.1, false},
		{bound{times: 3, slack: 1}, 1, 4, true},
		{bound{share: 0.5}, 10, 5, true},
		{bound{share: 0.5}, 10, 4.9, false},
		{bound{most: 7}, 100, 7, true},
		{bound{most: 7}, 1, 7.1, false},
		{bound{most: -1}, 0, 0, true},
		{bound{most: -1}, 0, 1, false},
	} {
		if got := tt.keeps; got != tt.bound.keeps(tt.few, tt.many) {
			t.Errorf("%q, %v and %v: want %v", tt.bound, tt.few, tt.many, got)
		}
	}
	sc := scenario{name: "s", few: 2, rows: []row{{key: "flat", bound: bound{times: 2}}, {key: "each", per: true, bound: bound{most: 1.5}}}}
	r := report{results: []result{{scenario: sc, most: 12, few: values{"flat": 1, "each": 5}, many: values{"flat": 2, "each": 15}}}}
	if r.missed() {
		t.Errorf("flat costs missed a bound:\n%s", r.text())
	}
	r.results[0].many = values{"flat": 2.5, "each": 25}
	if got := strings.Count(r.text(), "MISSED"); got != 2 || !r.missed() || strings.Count(r.markdown(), "**missed:**") != 2 {
		t.Errorf("%d of two missed bounds are marked:\n%s", got, r.text())
	}
	r.results[0].trouble = errors.New("broken")
	if !r.missed() {
		t.Error("what was not measured counts as kept")
	}
}

// TestPromises: what the pages are said to say is there, of costs that exist.
func TestPromises(t *testing.T) {
	keys := map[string]bool{}
	for _, sc := range scenarios {
		keys[sc.name] = true
		for _, row := range sc.rows {
			keys[sc.name+" "+row.key] = true
		}
	}
	holds := func(name string, all map[string]promise) {
		t.Helper()
		text := words(docs(t, name))
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if p := all[key]; !keys[key] {
				t.Errorf("%s: there is no cost %q", name, key)
			} else if !strings.Contains(text, words(p.says)) {
				t.Errorf("docs/%s does not say %q", name, p.says)
			}
		}
	}
	holds("guarantees.md", general)
	for _, b := range backends {
		of := b.name
		if of == "mariadb" {
			of = "mysql"
		}
		holds(of+".md", b.bounds)
	}
}

// TestThePage: docs/scale.md has a place for the table of each backend, a paragraph on each
// scenario, and in each table a row for each scenario of the backend.
func TestThePage(t *testing.T) {
	text := docs(t, "scale.md")
	for _, sc := range scenarios {
		if !strings.Contains(text, "- **"+sc.name+"**") {
			t.Errorf("it does not describe the scenario %s", sc.name)
		}
	}
	whole := text
	for _, b := range backends {
		_, table, _ := strings.Cut(text, "<!-- bench: "+b.name+" -->")
		table, _, _ = strings.Cut(table, "<!-- end -->")
		for _, sc := range scenarios {
			if has := strings.Contains(table, "| **"+sc.name+"** |"); has == (b.alone && sc.apart) {
				t.Errorf("the table of %s has %s: %v", b.name, sc.name, has)
			}
		}
		var err error
		if whole, err = page.Put(whole, b.name, "x"); err != nil {
			t.Error(err)
		}
	}
}

// docs returns a page of the docs.
func docs(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// words returns a text with single spaces.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }
