package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/page"
)

var update = flag.Bool("update", false, "write the page in testdata")

// canned are figures that a run might have found: of all backends, the second round on a machine
// that others used in part.
func canned() *Results {
	r := &Results{When: time.Date(2026, 11, 22, 20, 0, 0, 0, time.UTC), Machine: "2 cores", Versions: []string{"a 1.2", "b 3"}}
	for i, b := range backends {
		for _, sc := range scenarios {
			for k, c := range b.contenders {
				if !sc.admits(b, c) {
					continue
				}
				for j, n := range sc.cases {
					row := Row{Backend: b.name, Scenario: sc.name, Contender: c.name, Case: n, Bound: c.bound}
					for round := range 3 {
						v := Round{Values: map[string]float64{}}
						for m, metric := range sc.metrics {
							v.Values[metric.key] = float64(100*(i+1)+20*j+10*k+round) / float64(m+1)
						}
						if sc.name == "handoffs" {
							v.Turns = make([]int, n)
							for w := range v.Turns {
								v.Turns[w] = 5 + w%3
							}
						}
						if round == 1 && b.name == "mysql" {
							v.Others = 0.4
						}
						row.Rounds = append(row.Rounds, v)
						if sc.counts {
							break
						}
					}
					r.Rows = append(r.Rows, row)
				}
			}
		}
	}
	return r
}

func emptyPage() (page string) {
	page = "# A page\n\nBy hand.\n\n<!-- bench: run -->\n<!-- end -->\n"
	for _, sc := range scenarios {
		page += fmt.Sprintf("\nMore by hand.\n\n<!-- bench: %s -->\nold\n<!-- end -->\n", sc.name)
	}
	return page
}

// TestPage compares the page of canned figures with one that was reviewed.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "page.md")
	if err := os.WriteFile(name, []byte(emptyPage()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := canned()
	if !r.complete() {
		t.Error("it is not complete")
	}
	for range 2 { // what is written can be written over
		if err := writePage(name, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "page.md")
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the page is\n%s\n\n%s differs; go test -run TestPage -update writes it", got, golden)
	}
	drawn, err := filepath.Glob(filepath.Join(dir, "plots", "*.svg"))
	if err != nil || len(drawn) != 2*len(backends) {
		t.Errorf("plots %v, %v", drawn, err)
	}
	for _, name := range drawn {
		readable(t, name)
	}
}

// readable asserts that a plot is XML, and names dlock and no bound.
func readable(t *testing.T, name string) {
	t.Helper()
	svg, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if chars, ok := token.(xml.CharData); ok {
			text.Write(chars)
			text.WriteByte('\n')
		}
	}
	if s := text.String(); !strings.Contains(s, "dlock\n") || strings.Contains(s, "GET_LOCK") || strings.Contains(s, "advisory") || strings.Contains(s, "flock\n") && !strings.Contains(s, "dlock") {
		t.Errorf("%s says\n%s", filepath.Base(name), s)
	}
}

// TestPageNeedsItsParts: a page without the markers of a part is an error.
func TestPageNeedsItsParts(t *testing.T) {
	name := filepath.Join(t.TempDir(), "page.md")
	page := strings.Replace(emptyPage(), "<!-- bench: pairs -->", "", 1)
	if err := os.WriteFile(name, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writePage(name, canned()); err == nil || !strings.Contains(err.Error(), `"pairs"`) {
		t.Errorf("%v", err)
	}
	if text, _ := os.ReadFile(name); string(text) != page {
		t.Error("it was written to")
	}
}

// TestThePageOfTheProject: the page has markers for everything that is measured.
func TestThePageOfTheProject(t *testing.T) {
	text, err := os.ReadFile("../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	whole := string(text)
	for _, part := range append([]string{"run"}, names(scenarios)...) {
		if whole, err = page.Put(whole, part, "x"); err != nil {
			t.Error(err)
		}
	}
}

func names(all []scenario) (names []string) {
	for _, sc := range all {
		names = append(names, sc.name)
	}
	return names
}

// TestPartOfARun: the page is not written if only a part was measured.
func TestPartOfARun(t *testing.T) {
	r := canned()
	r.Rows = r.Rows[1:]
	if r.complete() {
		t.Error("without a row it is complete")
	}
	dir := t.TempDir()
	page, saved := filepath.Join(dir, "page.md"), filepath.Join(dir, "results.json")
	if err := os.WriteFile(page, []byte(emptyPage()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.save(saved); err != nil {
		t.Fatal(err)
	}
	if err := (options{from: saved, page: page}).do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(page); string(text) != emptyPage() {
		t.Error("the page was written")
	}
	again, err := load(saved)
	if err != nil || len(again.Rows) != len(r.Rows) || again.Rows[0].Rounds[0].Values["rate"] != r.Rows[0].Rounds[0].Values["rate"] {
		t.Errorf("what was saved is read as something else: %v", err)
	}
}
