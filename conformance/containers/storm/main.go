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
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
	again := flag.String("check", "", "check and draw the history in this folder once more, instead of a storm; no other flag goes with it")
	flag.Parse()
	var set []string
	flag.Visit(func(f *flag.Flag) { set = append(set, f.Name) })
	checks := slices.Contains(set, "check")
	i := slices.IndexFunc(backends, func(b backend) bool { return b.name == *on })
	wrong := func(format string, args ...any) int {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
		return 2
	}
	switch {
	case flag.NArg() > 0:
		return wrong("%q: an argument without a flag; storm -help lists the flags", flag.Arg(0))
	case checks && len(set) > 1:
		return wrong("-check judges a history that is there; no other flag goes with it")
	case checks:
		return verdict(*again)
	case i < 0:
		return wrong("-backend %s: there is no storm for it; there is one for %s", *on, strings.Join(of, ", "))
	case !(*minutes > 0 && *minutes <= mostMinutes):
		return wrong("-minutes %v: a storm lasts for more than 0 minutes, and for %d at most", *minutes, mostMinutes)
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	folder, err := newFolder(*dir)
	if err != nil {
		return wrong("%v", err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		cancel() // a second interrupt ends the program at once
		fmt.Fprintln(os.Stderr, "interrupted: the storm ends with the present faults; once more ends it at once")
	})
	fmt.Printf("a storm on %s, seed %d, in %s\n", *on, *seed, folder)
	var t service.Stage
	err = t.Try(func() { run(ctx, &t, backends[i], time.Duration(*minutes*float64(time.Minute)), *seed, folder) })
	stop()
	t.End()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if code := verdict(folder); code != 0 || err != nil {
		return 1
	}
	return 0
}

// mostMinutes is more than the history of a storm can be judged for.
const mostMinutes = 10_000

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
// promise was broken, and 2 if there is no history.
func verdict(dir string) int {
	r, page, err := judge(dir)
	if r == nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	fmt.Print(summary(r))
	if err != nil {
		fmt.Fprintln(os.Stderr, "there is no picture:", err)
		return 1
	}
	fmt.Println("the picture:", page)
	if len(r.Violations) > 0 || r.Interrupted {
		return 1
	}
	return 0
}

// judge checks the history in a folder, and writes its page there. It returns no report if there is
// no history.
func judge(dir string) (r *check.Report, page string, err error) {
	h, err := history.Read(dir)
	if err != nil {
		return nil, "", err
	}
	r = check.History(h)
	page = filepath.Join(dir, "storm.html")
	f, err := os.Create(page)
	if err != nil {
		return r, "", err
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
	fmt.Fprintf(&s, "linearizable: %d calls checked, not %d in windows, nor %d of which too many overlap\n", r.Linearized, r.Touched, r.Unsearched)
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
	if len(printed) == 0 {
		s.WriteString("no violation\n")
		return s.String()
	}
	var counts []string
	for _, law := range slices.Sorted(maps.Keys(printed)) {
		counts = append(counts, fmt.Sprintf("%s %d", law, printed[law]))
	}
	fmt.Fprintf(&s, "violations, of which the picture has all: %s\n", strings.Join(counts, ", "))
	return s.String()
}
