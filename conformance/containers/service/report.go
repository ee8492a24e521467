package service

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/conformance"
)

// report has what ran on which servers.
var report tallies

type tallies struct {
	mu    sync.Mutex
	lines []*Line
}

// Line is a line of the report: servers that were started, a way to start them that could not be
// used, or a set-up on which laws ran.
type Line struct {
	Started string // a kind of server: its version and where it came from
	Note    string

	SetUp    string // on which laws ran
	Versions string // of its servers
	Passed   int
	Failed   int
	Skipped  map[string]int // by their reasons
	Left     int            // to a long run
	Count    int            // of servers started
	From, To time.Time      // of the laws
}

// line returns the existing line, or a new one. The caller holds mu.
func (r *tallies) line(is func(*Line) bool, otherwise Line) *Line {
	if i := slices.IndexFunc(r.lines, is); i >= 0 {
		return r.lines[i]
	}
	r.lines = append(r.lines, &otherwise)
	return &otherwise
}

func (r *tallies) started(s *Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what := s.Version + ": " + s.Origin
	r.line(func(l *Line) bool { return l.Started == what }, Line{Started: what}).Count++
}

// tried notes, once each, the ways that failed before a server was started in another.
func (r *tallies) tried(ways []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range ways {
		first, _, _ := strings.Cut(w, "\n")
		note := "could not be used: " + first
		r.line(func(l *Line) bool { return l.Note == note }, Line{Note: note})
	}
}

// law counts the result of a law on a set-up.
func (r *tallies) law(setUp string, servers []*Server, v conformance.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.line(func(l *Line) bool { return l.SetUp == setUp }, Line{SetUp: setUp, From: v.Began, Left: len(conformance.Laws())})
	if l.Versions == "" {
		l.Versions = versions(servers)
	}
	l.count(v)
}

// count adds a law to the line of its set-up.
func (l *Line) count(v conformance.Verdict) {
	l.To = time.Now()
	l.Left--
	switch {
	case v.Failed:
		l.Failed++
	case v.Skipped != "":
		if l.Skipped == nil {
			l.Skipped = map[string]int{}
		}
		l.Skipped[v.Skipped]++
	default:
		l.Passed++
	}
}

func versions(servers []*Server) string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Version)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// String is the line as the tests of one package print it. The end of make test has those of laws.
func (l *Line) String() string {
	switch {
	case l.Started != "":
		return fmt.Sprintf("started %s (%d)", l.Started, l.Count)
	case l.SetUp == "":
		return l.Note
	}
	skipped := 0
	for n := range maps.Values(l.Skipped) {
		skipped += n
	}
	return fmt.Sprintf("ran on %s (%s): %d laws passed, %d skipped, %d failed, %d left to a long run, in %.0f s",
		l.SetUp, l.Versions, l.Passed, skipped, l.Failed, l.Left, l.To.Sub(l.From).Seconds())
}

// print prints the report, in the order in which its lines were added.
func (r *tallies) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		fmt.Println(l)
	}
}

// Unreport takes a line of a server or a set-up out of the report, which comes from a test of this
// package itself.
func Unreport(what string) {
	report.mu.Lock()
	defer report.mu.Unlock()
	report.lines = slices.DeleteFunc(report.lines, func(l *Line) bool { return l.Started == what || l.SetUp == what })
}
