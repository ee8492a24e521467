package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

const (
	barWidth = 50
	redraw   = 30 * time.Millisecond
)

// screen is where the demo is shown: with a progress bar and colours on a terminal, in plain lines
// elsewhere. The variable NO_COLOR, if it is not empty, keeps the colours away.
type screen struct {
	w        io.Writer
	terminal bool
	colours  bool

	count, of int // progress; of 0: none is shown
	drawn     time.Time
}

func newScreen(w io.Writer) *screen {
	f, ok := w.(*os.File)
	return screenOn(w, ok && term.IsTerminal(int(f.Fd())))
}

func screenOn(w io.Writer, terminal bool) *screen {
	terminal = terminal && os.Getenv("TERM") != "dumb"
	return &screen{w: w, terminal: terminal, colours: terminal && os.Getenv("NO_COLOR") == ""}
}

// printf writes above the bar, if there is one.
func (s *screen) printf(format string, args ...any) {
	bar := s.terminal && s.of > 0
	if bar {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
	fmt.Fprintf(s.w, format, args...)
	if bar {
		s.draw()
	}
}

// progress shows that count items of the stock were sold: in a bar, or in a line for every fifth of
// the stock.
func (s *screen) progress(count, stock int) {
	before := s.count
	s.count, s.of = count, stock
	switch {
	case s.terminal && time.Since(s.drawn) >= redraw:
		s.draw()
	case !s.terminal && count <= stock && count*5/stock > before*5/stock:
		s.printf("  %d of %d sold\n", count, stock)
	}
}

// endProgress leaves the bar as it is.
func (s *screen) endProgress() {
	if s.terminal && s.of > 0 {
		s.draw()
		fmt.Fprintln(s.w)
	}
	s.count, s.of = 0, 0
}

func (s *screen) draw() {
	s.drawn = time.Now()
	full := min(s.count, s.of) * barWidth / s.of
	bar := strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
	if s.count > s.of {
		bar = s.red(bar)
	} else {
		bar = s.green(bar)
	}
	fmt.Fprintf(s.w, "\r\x1b[K  %s %d of %d sold", bar, s.count, s.of)
}

func (s *screen) bold(text string) string  { return s.style("1", text) }
func (s *screen) red(text string) string   { return s.style("31", text) }
func (s *screen) green(text string) string { return s.style("32", text) }

func (s *screen) style(code, text string) string {
	if !s.colours {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
