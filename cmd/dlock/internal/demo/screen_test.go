package demo

import (
	"strings"
	"testing"
)

// shown is what a screen gets to see of a sale of 10.
func shown(terminal bool) string {
	var w strings.Builder
	s := screenOn(&w, terminal)
	for n := range 10 {
		s.progress(n+1, 10)
		if n == 4 {
			s.printf("%s\n", s.red("a line"))
		}
	}
	s.endProgress()
	return w.String()
}

func TestPlainLinesWhereThereIsNoTerminal(t *testing.T) {
	const want = "  2 of 10 sold\n  4 of 10 sold\na line\n  6 of 10 sold\n  8 of 10 sold\n  10 of 10 sold\n"
	if got := shown(false); got != want {
		t.Errorf("%q", got)
	}
	t.Setenv("TERM", "dumb")
	if got := shown(true); got != want {
		t.Errorf("a dumb terminal: %q", got)
	}
}

func TestABarOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	got := shown(true)
	if !strings.Contains(got, "\r\x1b[K\x1b[31ma line\x1b[0m\n\r") {
		t.Errorf("the line does not stand above the bar: %q", got)
	}
	if !strings.HasSuffix(got, strings.Repeat("█", barWidth)+"\x1b[0m 10 of 10 sold\n") {
		t.Errorf("the bar is not full in the end: %q", got)
	}
}

func TestNoColor(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	got := shown(true)
	if strings.Contains(got, "\x1b[3") || !strings.Contains(got, "█") {
		t.Errorf("%q", got)
	}
}
