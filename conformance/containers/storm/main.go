// Storm attacks a backend of dlock for some minutes: processes lock, nest, join, downgrade, try,
// cancel, linger and unlock a few names while servers, networks and processes fail. It records what
// happened, checks it against what dlock promises, and draws it on one page.
//
//	go run ./storm -backend redis -minutes 10
//	go run ./storm -check FOLDER
//
// docs/storm.md describes it.
package main

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/storm/check"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/conformance/containers/storm/picture"
)

func main() { os.Exit(service.Run(command)) }

// command is the program, in the process that was started.
func command() int {
	var of []string
	for _, b := range backends {
		of = append(of, b.name)
	}
	on := flag.String("backend", "memory", "attack this one: "+strings.Join(of, ", "))
	minutes := flag.Float64("minutes", 1, "for so long")
	seed := flag.Uint64("seed", 0, "draw operations and faults from this number; 0: a new one")
	dir := flag.String("dir", "", "write the history and the page to this folder, which must have no history; empty: a new one")
	again := flag.String("check", "", "check and draw the history in this folder once more, instead of a storm")
	flag.Parse()
	if *again != "" {
		return verdict(*again)
	}
	i := slices.IndexFunc(backends, func(b backend) bool { return b.name == *on })
	switch {
	case i < 0:
		fmt.Fprintf(os.Stderr, "-backend %s: there is no storm for it; there is one for %s\n", *on, strings.Join(of, ", "))
		return 2
	case flag.NArg() > 0 || *minutes <= 0:
		flag.Usage()
		return 2
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	folder, err := newFolder(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("a storm on %s, seed %d, in %s\n", *on, *seed, folder)
	var t service.Stage
	err = t.Try(func() { run(&t, backends[i], time.Duration(*minutes*float64(time.Minute)), *seed, folder) })
	t.End()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if code := verdict(folder); code != 0 || err != nil {
		return 1
	}
	return 0
}

// newFolder returns a folder without a history.
func newFolder(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "dlock-storm-")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if old, _ := filepath.Glob(filepath.Join(dir, "*.jsonl")); len(old) > 0 {
		return "", fmt.Errorf("%s has a history already: name another folder", dir)
	}
	return filepath.Abs(dir)
}

// verdict checks and draws the history in a folder, and prints the result. It returns 0 if no
// promise was broken.
func verdict(dir string) int {
	r, page, err := judge(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(summary(r))
	fmt.Println("the picture:", page)
	if len(r.Violations) > 0 || r.Interrupted {
		return 1
	}
	return 0
}

// judge checks the history in a folder, and writes its page there.
func judge(dir string) (r *check.Report, page string, err error) {
	h, err := history.Read(dir)
	if err != nil {
		return nil, "", err
	}
	r = check.History(h)
	page = filepath.Join(dir, "storm.html")
	f, err := os.Create(page)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	return r, page, picture.Write(f, h, r)
}

// shown is how many violations of a law are printed.
const shown = 10

// summary is the report for people.
func summary(r *check.Report) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d calls of Lock, %d leases, %d of them lost\n", r.Calls, r.Holds, r.Losses)
	total := 0
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(r.Faults)) {
		total += r.Faults[name]
		faults = append(faults, fmt.Sprintf("%s %d", name, r.Faults[name]))
	}
	fmt.Fprintf(&s, "%d faults: %s\n", total, strings.Join(faults, ", "))
	fmt.Fprintf(&s, "linearizable: %d calls checked, %d not (too many overlap)\n", r.Linearized, r.Unchecked)
	fmt.Fprintf(&s, "the register with tokens refused %d writes; the one without lost %d of %d updates\n", r.Refused, r.LostThere, r.Updates)
	if r.Interrupted {
		s.WriteString("interrupted: progress, remains and baseline were not checked\n")
	}
	if !r.Bites() {
		s.WriteString("did not bite: no holder was at work when its lock passed to another one\n")
	}
	if len(r.Windows) > 0 {
		excluded := map[check.Law]int{}
		for _, v := range r.Excluded {
			excluded[v.Law]++
		}
		fmt.Fprintf(&s, "%d failovers or steps of a clock that may lose grants, whose windows have %.0f%% of the time; excluded there: %d", len(r.Windows), 100*r.Within, len(r.Excluded))
		for _, law := range slices.Sorted(maps.Keys(excluded)) {
			fmt.Fprintf(&s, ", %s %d", law, excluded[law])
		}
		s.WriteString("\n")
	}
	printed := map[check.Law]int{}
	for _, v := range r.Violations {
		if printed[v.Law]++; printed[v.Law] <= shown {
			first, _, _ := strings.Cut(v.String(), "\n") // the page has the rest
			fmt.Fprintf(&s, "VIOLATION of %s\n", first)
		}
	}
	for _, law := range slices.Sorted(maps.Keys(printed)) {
		fmt.Fprintf(&s, "%d violations of %s", printed[law], law)
		if printed[law] > shown {
			fmt.Fprintf(&s, "; the picture has those that are not above")
		}
		s.WriteString("\n")
	}
	if len(printed) == 0 {
		s.WriteString("no violation\n")
	}
	return s.String()
}
