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
			return err
		}
	}
	return os.WriteFile(name, []byte(whole), 0o644)
}

// about says when and where the report was made.
func (r report) about() string {
	on := fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	for _, v := range r.versions[:min(1, len(r.versions))] { // they are the same
		on += ", " + v
	}
	part := ""
	if r.share != 1 {
		part = fmt.Sprintf(", with %s %% of everything", digits(100*r.share))
	}
	return fmt.Sprintf("Measured in %s on %s%s.\n", r.when.Format("January 2006"), on, part)
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
