package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/rivo/uniseg"
)

// columns is the greatest width of a table for people.
const columns = 80

// table writes rows in columns. The first row is the heading.
func table(w io.Writer, rows [][]string) {
	for _, line := range tableLines(rows, columns) {
		fmt.Fprintln(w, line)
	}
}

// tableLines are the rows in columns. The last column is cut to the rest of the width.
func tableLines(rows [][]string, width int) (lines []string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], uniseg.StringWidth(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		used := 0
		for i, cell := range row {
			if i == len(row)-1 {
				line.WriteString(short(cell, max(width-used, 8)))
				break
			}
			line.WriteString(cell + strings.Repeat(" ", widths[i]-uniseg.StringWidth(cell)+2))
			used += widths[i] + 2
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

// short cuts text to n columns, and marks the cut. A character of Chinese, Japanese or Korean takes
// two columns, and so do most emoji; a combining mark takes none.
func short(text string, n int) string {
	if uniseg.StringWidth(text) <= n {
		return text
	}
	end, used, state := 0, 1, -1 // used: one for the ellipsis
	for rest := text; ; {
		character, after, width, next := uniseg.FirstGraphemeClusterInString(rest, state)
		if used += width; used > n || character == "" {
			return text[:end] + "…"
		}
		end, rest, state = end+len(character), after, next
	}
}

// printable replaces characters that a terminal would obey and not show.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}

// span is a duration in about six characters at most.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", max(d, 0).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// writeJSON writes v for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
