// Package page writes what a program measured into a page of the docs, whose prose is written by
// hand. The results stand between markers:
//
//	<!-- bench: pairs -->
//	…
//	<!-- end -->
package page

import (
	"fmt"
	"strings"
)

const (
	beginMark = "<!-- bench: %s -->\n"
	endMark   = "<!-- end -->"
)

// Put returns the page with the body between the markers of a part, in place of what stood there.
// Lines of the body that are neither of a table nor pictures are broken at 100 columns. A page
// without the markers is an error.
func Put(page, part, body string) (string, error) {
	begin := fmt.Sprintf(beginMark, part)
	before, rest, ok := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, endMark)
	if !ok || !closed {
		return "", fmt.Errorf("the page has no part %q", part)
	}
	return before + begin + strings.TrimRight(fill(body), "\n") + "\n" + endMark + after, nil
}

// fill breaks lines of prose at 100 columns.
func fill(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") || strings.HasPrefix(line, "!") || len(line) <= 100 {
			out.WriteString(line)
			continue
		}
		column := 0
		for i, word := range strings.Fields(line) {
			switch n := len([]rune(word)); {
			case i > 0 && column+1+n > 100:
				out.WriteString("\n")
				column = n
			case i > 0:
				out.WriteString(" ")
				column += n + 1
			default:
				column = n
			}
			out.WriteString(word)
		}
		out.WriteString("\n")
	}
	return out.String()
}
