package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/dlock-go/dlock/conformance/containers/page"
)

// writePage writes the tables of the reports into the page. Those of other backends stay.
func writePage(name string, all []report) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	whole := string(text)
	for _, r := range all {
		if whole, err = page.Put(whole, r.name, r.about()+"\n"+r.markdown()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return os.WriteFile(name, []byte(whole), 0o644)
}

// checkPage finds out whether the page has room for the tables of the backends.
func checkPage(name string, chosen []backend) error {
	text, err := os.ReadFile(name)
	for _, b := range chosen {
		if err == nil {
			_, err = page.Put(string(text), b.name, "")
		}
	}
	if err != nil {
		return fmt.Errorf("-page %s: %w", name, err)
	}
	return nil
}

// about says when and where the report was made.
func (r report) about() string {
	on := fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	for _, v := range r.versions[:min(1, len(r.versions))] { // they are the same
		on += ", " + v
	}
	return fmt.Sprintf("Measured in %s on %s.\n", r.when.Format("January 2006"), on)
}

// markdown is the table of a backend. A bound that was missed is marked.
func (r report) markdown() string {
	var s strings.Builder
	s.WriteString("| | few | many | bound | the page says |\n|---|---|---|---|---|\n")
	for _, x := range r.results {
		fmt.Fprintf(&s, "| **%s** | %d | %d | | |\n", x.name, x.scenario.few, x.most)
		for _, l := range r.lines(x) {
			many := l.many
			if l.missed {
				many = "**missed:** " + many
			}
			fmt.Fprintf(&s, "| %s | %s | %s | %s | %s |\n", l.title, l.few, many, l.bound, strings.ReplaceAll(l.says, "|", `\|`))
		}
	}
	return s.String()
}
