package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// progress is a bar in one line of a terminal. On anything else it shows nothing.
type progress struct {
	w     io.Writer
	shown bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		w = nil
	}
	return &progress{w: w}
}

// show shows that so many of all are done, and what is under way.
func (p *progress) show(done, all int, what string) {
	if p.w == nil {
		return
	}
	const width = 30
	full := done * width / max(all, 1)
	fmt.Fprintf(p.w, "\r\x1b[K%s%s %s", strings.Repeat("█", full), strings.Repeat("░", width-full), short(what, columns-width-2))
	p.shown = true
}

// end clears the line.
func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
