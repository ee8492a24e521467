// Bench measures dlock and the locks that people use instead side by side: on the same real
// servers, in one run, in turns. It compares the medians of the rounds, and prints no ratio that
// too few rounds, a busy machine or rounds that disagree have made meaningless, but says so.
//
//	bench                                    everything
//	bench -on redis,etcd -what handoffs      some backends, some scenarios
//	bench -cases 16 -who dlock,redsync       some cases, some contenders
//	bench -rounds 9 -factor 3                more rounds, three times as long
//	bench -save a.json                       keep the figures
//	bench -from a.json,b.json,c.json         what became of the goals, in the median of three runs
//	bench -page docs/performance.md          write the tables and plots of the page
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// scenarios are all there are.
var scenarios = []scenario{pairs, handOffs, waits, roundTrips, leases, waiters}

func main() {
	// as in the tests: the helper of testcontainers cannot be pulled everywhere, and ports are on
	// the loopback
	for name, value := range map[string]string{"TESTCONTAINERS_RYUK_DISABLED": "true", "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1"} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
	os.Exit(service.Run(run))
}

func run() int {
	o := options{choice: choice{settings: settings{rounds: fewest, factor: 1}}}
	on := flag.String("on", "", "the backends, with commas between; all of none")
	what := flag.String("what", "", "the scenarios")
	cases := flag.String("cases", "", "the cases: 1,16,256")
	who := flag.String("who", "", "the contenders")
	flag.IntVar(&o.rounds, "rounds", o.rounds, "how many rounds each contender has in each case")
	flag.Float64Var(&o.factor, "factor", o.factor, "how much longer than usual the rounds are")
	flag.Float64Var(&busiest, "busy", busiest, "the share of the machine that others may have in a round that counts")
	flag.StringVar(&o.save, "save", "", "a file for the figures, as JSON")
	flag.StringVar(&o.from, "from", "", "files of figures, with commas between, to be read instead of measuring")
	flag.StringVar(&o.page, "page", "", "the page whose tables and plots are written, if everything was measured")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	context.AfterFunc(ctx, cancel) // the second interrupt ends what does not mind the first
	if err := o.choose(*on, *what, *cases, *who); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := o.do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// options are what a run was told.
type options struct {
	choice
	save, from, page string
}

func (o options) do(ctx context.Context) error {
	var runs []*Results
	if o.from != "" {
		for name := range strings.SplitSeq(o.from, ",") {
			r, err := load(name)
			if err != nil {
				return err
			}
			runs = append(runs, r)
		}
	} else {
		r, err := o.measure(ctx, os.Stdout)
		if err != nil {
			return err
		}
		runs = append(runs, r)
	}
	last := runs[len(runs)-1]
	printGoals(os.Stdout, outcomes(runs...))
	if o.save != "" {
		if err := last.save(o.save); err != nil {
			return err
		}
	}
	if o.page == "" {
		return nil
	}
	if !last.complete() {
		fmt.Printf("\n%s stays as it is: not everything was measured\n", o.page)
		return nil
	}
	return writePage(o.page, last)
}

// measure puts all that was chosen to all contenders that were chosen.
func (c choice) measure(ctx context.Context, out io.Writer) (*Results, error) {
	results := newResults()
	start := time.Now()
	var errs []error
	for _, b := range c.backends {
		err := b.on(ctx, func(ctx context.Context, s *stand) {
			results.Versions = append(results.Versions, s.versions...)
			for _, sc := range c.scenarios {
				for _, n := range sc.cases {
					if ctx.Err() == nil {
						rows := contest(ctx, c.settings, sc, s, n)
						printCase(out, sc, rows)
						results.Rows = append(results.Rows, rows...)
					}
				}
			}
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.name, err))
		}
	}
	fmt.Fprintf(out, "\n%s, in %s\n%s\n", results.Machine, time.Since(start).Round(time.Second), strings.Join(results.Versions, ", "))
	return results, errors.Join(append(errs, ctx.Err())...)
}

// choice is what a run is to measure.
type choice struct {
	settings
	backends  []backend
	scenarios []scenario // with the cases that were chosen
}

// choose reads lists of names; an empty one names all. Each name has to be somebody's.
func (c *choice) choose(on, what, cases, who string) error {
	unknown := map[string]bool{}
	for name := range strings.SplitSeq(strings.Join([]string{on, what, cases, who}, ","), ",") {
		unknown[name] = name != ""
	}
	named := func(list, name string) bool {
		if list != "" && !slices.Contains(strings.Split(list, ","), name) {
			return false
		}
		delete(unknown, name)
		return true
	}
	for _, b := range backends {
		if named(on, b.name) {
			b.contenders = slices.DeleteFunc(slices.Clone(b.contenders), func(c contender) bool { return !named(who, c.name) })
			c.backends = append(c.backends, b)
		}
	}
	for _, sc := range scenarios {
		if named(what, sc.name) {
			sc.cases = slices.DeleteFunc(slices.Clone(sc.cases), func(n int) bool { return !named(cases, strconv.Itoa(n)) })
			c.scenarios = append(c.scenarios, sc)
		}
	}
	for name, yes := range unknown {
		if yes {
			return fmt.Errorf("nothing that was chosen is called %q", name)
		}
	}
	return nil
}
