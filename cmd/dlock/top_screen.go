package main

import (
	"os"
	"strings"

	"golang.org/x/term"
)

const (
	ctrlC = 3

	// as terminals have understood them since the VT100 and xterm
	otherScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // without cursor, and lines are not wrapped
	firstScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearRight  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// fullScreen is a terminal that shows a page of its own until it is restored.
type fullScreen struct {
	in, out       *os.File
	before        *term.State
	keys          chan byte // closed when the terminal has no more input
	width, height int       // when it was last drawn
}

// takeScreen takes over the terminal. Keys come one by one, Ctrl-C too.
func takeScreen(in, out *os.File) (*fullScreen, error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, err
	}
	s := &fullScreen{in: in, out: out, before: before, keys: make(chan byte)}
	out.WriteString(otherScreen)
	go func() {
		defer close(s.keys)
		for b := make([]byte, 1); ; {
			if n, err := in.Read(b); n == 0 || err != nil {
				return
			}
			s.keys <- b[0]
		}
	}()
	return s, nil
}

// restore shows what was there before.
func (s *fullScreen) restore() {
	s.out.WriteString(firstScreen)
	term.Restore(int(s.in.Fd()), s.before)
}

// draw shows the lines that fit.
func (s *fullScreen) draw(lines func(width, height int) []string) {
	s.width, s.height = s.size()
	var all strings.Builder
	all.WriteString(home)
	for i, line := range lines(s.width, s.height) {
		if i > 0 {
			all.WriteString("\r\n")
		}
		all.WriteString(line + clearRight)
	}
	all.WriteString(clearBelow)
	s.out.WriteString(all.String())
}

func (s *fullScreen) size() (width, height int) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 1 || height < 1 {
		return columns, 24
	}
	return width, height
}

// resized reports whether the size of the terminal has changed since it was drawn. Not all systems
// have a signal for that.
func (s *fullScreen) resized() bool {
	w, h := s.size()
	return w != s.width || h != s.height
}
