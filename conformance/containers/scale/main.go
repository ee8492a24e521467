// Scale measures whether costs stay flat: with 1,000 clients beside one, with 64 processes, with
// 10,000 names, with 5,000 waiters and 5,000 readers of one name, and after a week of standbys that
// crashed. Each cost is compared with that of a few in the same run, and with what the page of the
// backend says.
//
//	go run ./scale -on redis,etcd -what week
//	go run ./scale -page ../../docs/scale.md
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

func main() { os.Exit(service.Run(command)) }

// silent is the log of Redis's client library, which has a line for each refused connection.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { goredis.SetLogger(silent{}) } // also in other processes

// command is the program, in the process that was started.
func command() int {
	on := flag.String("on", "", "the backends, separated by commas; empty: all")
	what := flag.String("what", "", "the scenarios, separated by commas; empty: all")
	share := flag.Float64("share", 1, "measure with this share of everything, above 0, to try something out")
	to := flag.String("page", "", "write the tables of these backends into this page, if all is measured")
	flag.Parse()
	chosen, err := choose(backends, *on, func(b backend) string { return b.name })
	scenarios, bad := choose(scenarios, *what, func(sc scenario) string { return sc.name })
	whole := *what == "" && *share == 1
	switch {
	case err != nil:
	case bad != nil:
		err = bad
	case flag.NArg() > 0:
		err = fmt.Errorf("%q: an argument without a flag; scale -help lists the flags", flag.Arg(0))
	case !(*share > 0 && *share <= 1):
		err = fmt.Errorf("-share %v: a share is above 0, and at most 1", *share)
	case *to != "" && whole:
		err = checkPage(*to, chosen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		cancel() // a second interrupt ends the program at once
		fmt.Fprintln(os.Stderr, "interrupted: the present scenario is the last one; once more ends it at once")
	})

	start := time.Now()
	var all []report
	missed := false
	for _, b := range chosen {
		r := measure(ctx, b, scenarios, full.times(*share))
		fmt.Printf("\n%s\n%s", strings.Join(append([]string{b.name}, r.versions...), ", "), r.text())
		missed = missed || r.missed()
		all = append(all, r)
	}
	stop()
	fmt.Printf("\nin %s\n", time.Since(start).Round(time.Second))
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "interrupted: not all was measured")
		return 1
	}
	if *to != "" && !whole {
		fmt.Printf("%s is not changed: not all was measured\n", *to)
	}
	if *to != "" && whole {
		if err := writePage(*to, all); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if missed {
		return 1
	}
	return 0
}

// choose returns the elements that a list names; an empty list selects all.
func choose[E any](all []E, list string, name func(E) string) ([]E, error) {
	if list == "" {
		return all, nil
	}
	var chosen []E
	for n := range strings.SplitSeq(list, ",") {
		n = strings.TrimSpace(n)
		i := slices.IndexFunc(all, func(e E) bool { return name(e) == n })
		if i < 0 {
			var names []string
			for _, e := range all {
				names = append(names, name(e))
			}
			return nil, fmt.Errorf("there is no %q; there is %s", n, strings.Join(names, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
