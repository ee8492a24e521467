// Bench measures dlock side by side with the locks that people use instead: on the same real
// servers, in one run, in turns. It compares the medians of the rounds. Where too few rounds, a
// busy machine or rounds that disagree make a ratio meaningless, it prints the reason in place of
// the ratio.
//
//	bench                                    everything
//	bench -on redis,etcd -what handoffs      some backends, some scenarios
//	bench -cases 16 -who dlock,redsync       some cases, some contenders
//	bench -rounds 9 -factor 3                more rounds, three times as long
//	bench -save a.json                       keep the figures
//	bench -from a.json,b.json,c.json         the outcome of the goals, in the median of three runs
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

// scenarios are all scenarios.
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
	on := flag.String("on", "", "the backends, separated by commas; empty: all")
	what := flag.String("what", "", "the scenarios, separated by commas; empty: all")
	cases := flag.String("cases", "", "the cases, such as 1,16,256; empty: all")
	who := flag.String("who", "", "the contenders, separated by commas; empty: all")
	flag.IntVar(&o.rounds, "rounds", o.rounds, "the number of rounds of each contender in each case")
	flag.Float64Var(&o.factor, "factor", o.factor, "the factor by which rounds are longer than usual")
	flag.Float64Var(&busiest, "busy", busiest, "the share of the machine that other programs may use in a round that counts")
	flag.StringVar(&o.save, "save", "", "write the figures to this file, as JSON")
	flag.StringVar(&o.from, "from", "", "read the figures from these files, separated by commas, instead of measuring")
	flag.StringVar(&o.page, "page", "", "write the tables and plots of this page, if everything was measured")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a second interrupt ends the program at once
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

// options are the options of a run.
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
		fmt.Printf("\n%s is not changed: not everything was measured\n", o.page)
		return nil
	}
	return writePage(o.page, last)
}

// measure measures the chosen contenders in the chosen scenarios and cases.
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

// choice is the selection that a run measures.
type choice struct {
	settings
	backends  []backend
	scenarios []scenario // with the cases that were chosen
}

// choose reads lists of names; an empty list selects all. An unknown name is an error.
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
			return fmt.Errorf("%q is not the name of a backend, scenario, case or contender of this selection", name)
		}
	}
	return nil
}
