package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// tests reads what go test -json says, of several runs at once. It shows go test's own lines and
// whatever a test that failed wrote.
type tests struct {
	mu     sync.Mutex
	out    io.Writer
	steps  []string // that run
	under  map[id]*state
	laws   map[string]*tally // of suites that report nothing by themselves, by package
	failed []string
	said   map[string][]string // by each that failed
	racing string              // the package whose race report is being read
	races  []string            // the lines of the first reports of the race detector
	dumps  []*dump             // of those whose time was over
	notes  []string            // what could not be run
	again  []string            // what failed after a stall, and was run again

	interrupted bool // tests that have no end are no news
}

// id is a test, or a package, whose test is empty.
type id struct{ pkg, test string }

// state is a test that runs.
type state struct {
	since  time.Time
	paused bool // it waits for its turn among those that run side by side
	text   strings.Builder
}

// tally is a line of the last table.
type tally struct {
	SetUp, Versions      string
	Passed, Failed, Left int
	Skipped              map[string]int
	From, To             time.Time
}

// event is a line of go test -json.
type event struct {
	Time                          time.Time
	Action, Package, Test, Output string
}

func newTests(out io.Writer) *tests {
	return &tests{out: out, under: map[id]*state{}, laws: map[string]*tally{}, said: map[string][]string{}}
}

func (t *tests) print(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	io.WriteString(t.out, text)
}

// Write implements io.Writer.
func (t *tests) Write(b []byte) (int, error) {
	t.print(string(b))
	return len(b), nil
}

// interrupt says that what ends from now on is cut off.
func (t *tests) interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.interrupted = true
}

func (t *tests) begin(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = append(t.steps, step)
}

func (t *tests) end(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = slices.DeleteFunc(t.steps, func(s string) bool { return s == step })
}

// read takes in events until they end.
func (t *tests) read(events io.Reader) {
	r := bufio.NewReader(events)
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				t.print(line)
			} else {
				t.take(e)
			}
		}
		if err != nil {
			return
		}
	}
}

func (t *tests) take(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	me := id{e.Package, e.Test}
	s := t.under[me]
	switch e.Action {
	case "start", "run":
		t.under[me] = &state{since: e.Time}
	case "pause", "cont":
		if s != nil {
			s.since, s.paused = e.Time, e.Action == "pause"
		}
	case "build-output":
		io.WriteString(t.out, e.Output)
	case "output":
		t.output(e, s)
	case "pass", "skip", "fail":
		t.verdict(e, s)
		delete(t.under, me)
	}
}

// noWay is what a test says that has no server, or none that starts soon enough.
var noWay = regexp.MustCompile(`no way to start \w+( again within \w+)?`)

func (t *tests) output(e event, s *state) {
	if note := noWay.FindString(e.Output); note != "" && !slices.Contains(t.notes, note) {
		t.notes = append(t.notes, note)
	}
	t.race(e)
	t.hang(e)
	switch {
	case e.Test == "" && (strings.HasPrefix(e.Output, "ok ") || strings.HasPrefix(e.Output, "FAIL\t") || strings.HasPrefix(e.Output, "---")):
		io.WriteString(t.out, e.Output)
	case s != nil && !strings.HasPrefix(e.Output, "=== "):
		s.text.WriteString(e.Output)
	}
}

// race keeps the reports of the race detector, which may come between the lines of any test.
func (t *tests) race(e event) {
	const begin, end, most = "WARNING: DATA RACE", "==================", 60
	switch {
	case strings.Contains(e.Output, begin):
		t.racing = e.Package
	case t.racing == e.Package && strings.HasPrefix(e.Output, end):
		t.racing = ""
	}
	if t.racing == e.Package && t.racing != "" && len(t.races) < most {
		t.races = append(t.races, e.Output)
	}
}

// saying is a line of a test that is not of the servers' logs.
var saying = regexp.MustCompile(`^\s*(\w+\.go:\d+: |panic: )`)

// firstLines returns what a test said when it failed: its first lines, each cut short.
func firstLines(text string) (lines []string) {
	const most, width = 4, 300
	for line := range strings.Lines(text) {
		if !saying.MatchString(line) || strings.Contains(line, "wrote meanwhile:") {
			continue
		}
		line = strings.TrimSpace(line)
		lines = append(lines, line[:min(len(line), width)])
		if len(lines) == most {
			break
		}
	}
	return lines
}

// suite is a law of a suite that has no report of its own.
var (
	suite = regexp.MustCompile(`^TestConformance(InVirtualTime)?/[^/]+$`)
	needs = regexp.MustCompile(`needs .*`)
)

func (t *tests) verdict(e event, s *state) {
	if suite.MatchString(e.Test) {
		t.law(e, s)
	}
	// the tests of trials stall on purpose
	if s != nil && strings.Contains(s.text.String(), "proves nothing; once more") && !strings.HasPrefix(e.Test, "TestTrial") {
		t.again = append(t.again, path.Base(e.Package)+" "+e.Test)
	}
	if e.Action != "fail" || s == nil {
		return
	}
	if e.Test != "" {
		name := path.Base(e.Package) + " " + e.Test
		t.failed = append(t.failed, name)
		t.said[name] = firstLines(s.text.String())
		io.WriteString(t.out, s.text.String())
		return
	}
	t.cutOff(e.Package)
	io.WriteString(t.out, s.text.String())
}

// cutOff records what ended with the process of its package. Of a test and its parts the parts say
// more, and one that waited for its turn says nothing.
func (t *tests) cutOff(pkg string) {
	waited := 0
	var over []id
	for _, i := range t.sorted() {
		x := t.under[i]
		if i.pkg != pkg || i.test == "" {
			continue
		}
		over = append(over, i)
		switch {
		case t.interrupted:
		case x.paused:
			waited++
		default:
			io.WriteString(t.out, x.text.String())
			if !t.hasParts(i) {
				t.failed = append(t.failed, path.Base(pkg)+" "+i.test+" (had no end)")
			}
		}
	}
	if waited > 0 {
		t.failed = append(t.failed, fmt.Sprintf("%s, %d tests that waited for their turn", path.Base(pkg), waited))
	}
	for _, i := range over {
		delete(t.under, i)
	}
}

// hasParts reports whether parts of a test run.
func (t *tests) hasParts(i id) bool {
	for o, s := range t.under {
		if o.pkg == i.pkg && strings.HasPrefix(o.test, i.test+"/") && !s.paused {
			return true
		}
	}
	return false
}

func (t *tests) law(e event, s *state) {
	name, _, _ := strings.Cut(e.Test, "/")
	setUp := path.Base(e.Package)
	if name != "TestConformance" {
		setUp += ", in virtual time"
	}
	l := t.laws[setUp]
	if l == nil {
		l = &tally{SetUp: setUp, Skipped: map[string]int{}, From: e.Time}
		t.laws[setUp] = l
	}
	if s != nil && s.since.Before(l.From) {
		l.From = s.since
	}
	l.To = e.Time
	switch e.Action {
	case "pass":
		l.Passed++
	case "fail":
		l.Failed++
	case "skip":
		why := "without a reason"
		if s != nil && needs.MatchString(s.text.String()) {
			why = needs.FindString(s.text.String())
		}
		l.Skipped[why]++
	}
}

func (t *tests) sorted() []id {
	return slices.SortedFunc(maps.Keys(t.under), func(a, b id) int {
		return strings.Compare(a.pkg+" "+a.test, b.pkg+" "+b.test)
	})
}

// running says what runs: the steps, and of each package the test that has run for longest.
func (t *tests) running(now time.Time) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := map[string]id{}
	for i, s := range t.under {
		if o, ok := oldest[i.pkg]; i.test != "" && !t.hasParts(i) && !s.paused && (!ok || s.since.Before(t.under[o].since)) {
			oldest[i.pkg] = i
		}
	}
	what := slices.Clone(t.steps)
	for _, pkg := range slices.Sorted(maps.Keys(oldest)) {
		i := oldest[pkg]
		what = append(what, fmt.Sprintf("%s %s (%.0f s)", path.Base(pkg), i.test, now.Sub(t.under[i].since).Seconds()))
	}
	return strings.Join(what, "; ")
}

// summary prints what ran on what, with what the report of the tests of services says, and what
// failed.
func (t *tests) summary(out io.Writer, report string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := t.reported(report)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	why := map[string][]string{}
	for n, l := range lines {
		if n == 0 {
			fmt.Fprintf(w, "\nlaws ran on\tversion\tpassed\tfailed\tskipped\tleft to make long\tseconds\n")
		}
		skipped := 0
		for reason, n := range l.Skipped {
			skipped += n
			why[reason] = append(why[reason], l.SetUp)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%.0f\n", l.SetUp, l.Versions, l.Passed, l.Failed, skipped, l.Left, l.To.Sub(l.From).Seconds())
	}
	w.Flush()
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		fmt.Fprintf(out, "skipped: %s (%s)\n", reason, strings.Join(why[reason], "; "))
	}
	if len(t.again) > 0 {
		slices.Sort(t.again)
		fmt.Fprintf(out, "run again, since it failed after a stall: %s\n", strings.Join(t.again, "; "))
	}
	for _, note := range t.notes {
		fmt.Fprintf(out, "NOT RUN: there is %s, and what needs it was not run\n", note)
	}
	io.WriteString(out, strings.Join(t.races, ""))
	for _, name := range t.failed {
		part := func(o string) bool { return strings.HasPrefix(o, name+"/") }
		if !slices.ContainsFunc(t.failed, part) { // which says more
			fmt.Fprintf(out, "FAILED: %s\n", name)
			for _, line := range t.said[name] {
				fmt.Fprintf(out, "    %s\n", line)
			}
		}
	}
	t.showHangs(out)
}

// reported returns the lines of the table of laws. The report has a line for each law.
func (t *tests) reported(report string) (laws []*tally) {
	for _, name := range slices.Sorted(maps.Keys(t.laws)) {
		laws = append(laws, t.laws[name])
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return laws
	}
	for line := range strings.Lines(string(text)) {
		var l tally
		if json.Unmarshal([]byte(line), &l) != nil || l.SetUp == "" {
			continue
		}
		if i := slices.IndexFunc(laws, func(o *tally) bool { return o.SetUp == l.SetUp }); i >= 0 {
			laws[i].add(l)
		} else {
			laws = append(laws, &l)
		}
	}
	return laws
}

// add adds another tally of the same set-up.
func (l *tally) add(o tally) {
	l.Passed += o.Passed
	l.Failed += o.Failed
	l.Left = min(l.Left, o.Left)
	for why, n := range o.Skipped {
		if l.Skipped == nil {
			l.Skipped = map[string]int{}
		}
		l.Skipped[why] += n
	}
	if o.From.Before(l.From) {
		l.From = o.From
	}
	if o.To.After(l.To) {
		l.To = o.To
	}
}
