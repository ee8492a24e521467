package containers

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// report is what ran on what.
var report tallies

type tallies struct {
	mu      sync.Mutex
	order   []string
	servers map[string]int
	laws    map[string]*verdicts // by what they ran on
}

type verdicts struct{ passed, skipped, failed int }

func (r *tallies) started(s *Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.servers == nil {
		r.servers = map[string]int{}
	}
	what := s.Version + ": " + s.Origin
	if r.servers[what] == 0 {
		r.order = append(r.order, what)
	}
	r.servers[what]++
}

// tried notes, once each, the ways that failed before a server was started in another.
func (r *tallies) tried(ways []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range ways {
		first, _, _ := strings.Cut(w, "\n")
		if line := "could not be used: " + first; !slices.Contains(r.order, line) {
			r.order = append(r.order, line)
		}
	}
}

// law counts what became of a law on what name says.
func (r *tallies) law(name string, failed, skipped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.laws == nil {
		r.laws = map[string]*verdicts{}
	}
	v := r.laws[name]
	if v == nil {
		v = &verdicts{}
		r.laws[name] = v
		r.order = append(r.order, name)
	}
	switch {
	case failed:
		v.failed++
	case skipped:
		v.skipped++
	default:
		v.passed++
	}
}

// print writes the report, one line for each kind of server and each run of the suite, in the order in which they came.
func (r *tallies) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s strings.Builder
	for _, what := range r.order {
		if v := r.laws[what]; v != nil {
			fmt.Fprintf(&s, "ran on %s: %d laws passed, %d skipped, %d failed\n", what, v.passed, v.skipped, v.failed)
		} else if n := r.servers[what]; n > 0 {
			fmt.Fprintf(&s, "started %s (%d)\n", what, n)
		} else {
			fmt.Fprintln(&s, what)
		}
	}
	fmt.Print(s.String())
	name := os.Getenv("DLOCK_TEST_REPORT")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(s.String())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "DLOCK_TEST_REPORT:", err)
	}
}
