package main

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// dump is what a package's tests wrote when their time was over: what ran, and where each goroutine
// stood.
type dump struct {
	pkg   string
	lines []string
	ended bool // what follows is not of it
}

const (
	// mostDumped is how many lines of a dump are read: more than ten thousand goroutines have.
	mostDumped = 500_000
	// mostShown is how many lines of all dumps the end of a run has. Where little of the output is
	// kept it is the end.
	mostShown = 150
	// ours is what the names of the repository's functions begin with.
	ours = "github.com/dlock-go/dlock"
)

// timedOut is what a dump begins with: package testing writes the first, and a process that does
// not get that far is sent a signal by the go command.
var timedOut = regexp.MustCompile(`^(panic: test timed out after |SIGQUIT: quit)`)

// hang keeps what follows after the time of a package's tests was over. It may come between the
// lines of any test.
func (t *tests) hang(e event) {
	i := slices.IndexFunc(t.dumps, func(d *dump) bool { return d.pkg == e.Package })
	switch {
	case i < 0 && timedOut.MatchString(e.Output):
		t.dumps = append(t.dumps, &dump{pkg: e.Package, lines: []string{e.Output}})
	case i < 0 || t.dumps[i].ended:
	case strings.HasPrefix(e.Output, "FAIL\t"):
		t.dumps[i].ended = true
	case len(t.dumps[i].lines) < mostDumped:
		t.dumps[i].lines = append(t.dumps[i].lines, e.Output)
	}
}

// showHangs says of each package whose time was over what ran, and where the goroutines stand that
// run code of this repository.
func (t *tests) showHangs(out io.Writer) {
	for _, d := range t.dumps {
		fmt.Fprintf(out, "where the goroutines of %s stood:\n", d.pkg)
		shown, left := d.show(mostShown / len(t.dumps))
		io.WriteString(out, shown)
		if left > 0 {
			fmt.Fprintf(out, "    and %d more\n", left)
		}
	}
	for _, d := range t.dumps { // at the very end
		fmt.Fprintf(out, "TIMED OUT: %s: %s; running: %s\n", path.Base(d.pkg), strings.TrimSpace(d.lines[0]), cmp.Or(strings.Join(d.running(), ", "), "unknown"))
	}
}

// running are the tests that ran, as package testing names them.
func (d *dump) running() (names []string) {
	for _, line := range d.lines {
		if strings.HasPrefix(line, "goroutine ") {
			break
		}
		if strings.HasPrefix(line, "\t\t") {
			names = append(names, strings.TrimSpace(line))
		}
	}
	return names
}

// stack is where goroutines stand.
type stack struct {
	state  string // of the first of them, as the runtime says it
	waited int    // for how many minutes, the longest
	rank   int    // what is shown first
	frames []string
	times  int
}

// header is the first line of a goroutine.
var (
	header = regexp.MustCompile(`^goroutine \d+.* \[(.*)\]:$`)
	waited = regexp.MustCompile(`(\d+) minutes`)
	// place is a line of code, without the folder and the offset.
	place = regexp.MustCompile(`([^/\s]+\.(?:go|s):\d+)`)
)

// stacks returns where the goroutines stand that run code of this repository, those first that are
// likely to say why.
func (d *dump) stacks() []*stack {
	var all []*stack
	byFrames := map[string]*stack{}
	for block := range strings.SplitSeq(strings.Join(d.lines, ""), "\n\n") {
		s := parseStack(block)
		if s == nil {
			continue
		}
		key := strings.Join(s.frames, "\n")
		if o := byFrames[key]; o != nil {
			o.times++
			if s.waited > o.waited {
				o.state, o.waited = s.state, s.waited
			}
			continue
		}
		byFrames[key] = s
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b *stack) int {
		return cmp.Or(a.rank-b.rank, b.waited-a.waited, a.times-b.times)
	})
	return all
}

// parseStack reads a goroutine, or returns nil: it runs no code of this repository, or is a test
// that waits for its turn.
func parseStack(block string) *stack {
	lines := strings.Split(strings.Trim(block, "\n"), "\n")
	for len(lines) > 0 && !strings.HasPrefix(lines[0], "goroutine ") { // of the panic itself
		lines = lines[1:]
	}
	if len(lines) == 0 {
		return nil
	}
	m := header.FindStringSubmatch(lines[0])
	if m == nil {
		return nil
	}
	s := &stack{state: m[1], times: 1, rank: 1}
	if n := waited.FindStringSubmatch(s.state); n != nil {
		s.waited, _ = strconv.Atoi(n[1])
	}
	const top = 3 // of other code, as much tells what is waited for
	runsOurs := false
	for i := 1; i < len(lines); i++ {
		f := lines[i]
		if strings.HasPrefix(f, "\t") || strings.HasPrefix(f, "created by ") {
			continue
		}
		if at := strings.LastIndexByte(f, '('); at > 0 {
			f = f[:at]
		}
		switch {
		case f == "testing.(*T).Parallel":
			return nil
		case f == "testing.(*T).Run" && i <= 2*top: // its subtest says more
			s.rank = 3
		case f == "testing.tRunner": // the test itself
			s.rank--
			continue
		}
		isOurs := strings.HasPrefix(f, ours)
		if runsOurs = runsOurs || isOurs; !isOurs && len(s.frames) >= top {
			continue
		}
		at := ""
		if i+1 < len(lines) {
			at = place.FindString(lines[i+1])
		}
		s.frames = append(s.frames, strings.TrimPrefix(f, ours+"/")+" "+at)
	}
	if !runsOurs {
		return nil
	}
	return s
}

// show returns the first of the stacks, in so many lines at most, and how many are left.
func (d *dump) show(most int) (text string, left int) {
	var out strings.Builder
	n := 0
	all := d.stacks()
	for i, s := range all {
		if n += 1 + len(s.frames); n > most && i > 0 {
			return out.String(), len(all) - i
		}
		fmt.Fprintf(&out, "    [%s]", s.state)
		if s.times > 1 {
			fmt.Fprintf(&out, " %d times", s.times)
		}
		out.WriteString("\n")
		for _, f := range s.frames[:min(len(s.frames), most)] {
			fmt.Fprintf(&out, "        %s\n", f)
		}
	}
	return out.String(), 0
}
