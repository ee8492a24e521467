package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// goal is a figure that dlock is to reach in each case.
type goal struct {
	backend, scenario string
	cases             []int
	least             []float64 // by case
	was               []float64 // what was reached when the goal was last updated; 0: not asserted
	of                measure
}

// measure computes a figure of dlock's.
type measure struct {
	of    func(sc scenario, rows []Row) (x float64, refused string) // refused: why there is none
	ratio bool                                                      // comparable between machines
	unit  string
}

var (
	bestPeer   = measure{toBest, true, "× the best peer"}
	rate       = measure{ownRate, false, "hand-offs/s"}
	leastShare = measure{worstShare, true, "of an even share, for each"}
	tail       = measure{shortTail, true, "for three times p50, divided by p99"}
)

// goals are all goals. Rates refer to the machine of docs/performance.md.
var goals = []goal{
	{"redis", "pairs", []int{1, 16, 256}, []float64{1, 1, 1.2}, []float64{0.9, 0.7, 1.1}, bestPeer},
	{"redis", "handoffs", []int{2, 16, 128}, []float64{1, 1, 1}, []float64{0.91, 0.98, 0.98}, bestPeer},
	{"redis", "handoffs", []int{2, 16}, []float64{0.8, 0.8}, []float64{1, 0.97}, leastShare},
	{"mysql", "pairs", []int{1, 16, 256}, []float64{1.1, 1.8, 7}, []float64{0.85, 1.15, 4.2}, bestPeer},
	{"mysql", "handoffs", []int{2, 16, 128}, []float64{246, 284, 217}, []float64{0, 0, 0}, rate},
	{"mysql", "handoffs", []int{2, 16, 128}, []float64{3.4, 2, 25}, []float64{2.8, 1.1, 5}, bestPeer},
	{"mysql", "handoffs", []int{2, 16, 128}, []float64{1, 1, 1}, []float64{0.9, 0.7, 0.25}, tail},
	{"mariadb", "pairs", []int{1, 16, 256}, []float64{1.1, 1.7, 8}, []float64{0.75, 1.8, 5.5}, bestPeer},
	{"mariadb", "handoffs", []int{2, 16, 128}, []float64{382, 353, 290}, []float64{0, 0, 0}, rate},
	{"mariadb", "handoffs", []int{2, 16, 128}, []float64{4.6, 1.5, 50}, []float64{3.1, 1.9, 1.4}, bestPeer},
	{"mariadb", "handoffs", []int{2, 16, 128}, []float64{1, 1, 1}, []float64{0.8, 0.75, 0.4}, tail},
	{"postgres", "pairs", []int{1, 16, 256}, []float64{1.1, 1.8, 5}, []float64{0.93, 1.9, 3}, bestPeer},
	{"postgres", "handoffs", []int{2, 16, 128}, []float64{3, 3, 3}, []float64{4, 2.2, 1.7}, bestPeer},
	{"postgres", "handoffs", []int{2, 16}, []float64{0.8, 0.8}, []float64{1, 0.95}, leastShare},
	{"zookeeper", "pairs", []int{1, 16, 256}, []float64{1.1, 1.1, 1.1}, []float64{1.04, 1.58, 1.65}, bestPeer},
	{"zookeeper", "handoffs", []int{2, 16, 128}, []float64{1, 1, 1}, []float64{0.96, 0.91, 0.98}, bestPeer},
	{"etcd", "pairs", []int{1, 16, 256}, []float64{1.05, 1.2, 2}, []float64{0.94, 1.03, 2.1}, bestPeer},
	{"etcd", "handoffs", []int{2, 16, 128}, []float64{360, 360, 360}, []float64{0, 0, 0}, rate},
	{"etcd", "handoffs", []int{2, 16, 128}, []float64{15, 2.4, 1.4}, []float64{11, 2.4, 1.4}, bestPeer},
}

func toBest(sc scenario, rows []Row) (float64, string) {
	r, ok := against(sc, rows, false)
	if !ok {
		return 0, "no peer to compare with"
	}
	return r.Value, r.Refused
}

func ownRate(_ scenario, rows []Row) (float64, string) {
	r := ours(rows)
	for _, round := range r.Rounds {
		if !round.quiet() {
			return 0, fmt.Sprintf("other programs used %.0f %% of the machine", 100*round.Others)
		}
	}
	return median(values(r.Rounds, "rate")), ""
}

// worstShare is the share of the waiter with the fewest turns, relative to an even share.
func worstShare(_ scenario, rows []Row) (float64, string) {
	least, _, mean := shares(ours(rows).Rounds)
	if mean < 10 {
		return 0, fmt.Sprintf("%.1f turns per waiter are too few", mean)
	}
	return float64(least) / mean, ""
}

// shortTail is three times p50, divided by p99; the goal is 1 or more.
func shortTail(_ scenario, rows []Row) (float64, string) {
	r := ours(rows)
	for _, round := range r.Rounds {
		if !round.quiet() {
			return 0, fmt.Sprintf("other programs used %.0f %% of the machine", 100*round.Others)
		}
	}
	p99 := median(values(r.Rounds, "p99"))
	if p99 == 0 {
		return 0, "there was no hand-off"
	}
	return 3 * median(values(r.Rounds, "p50")) / p99, ""
}

// ours returns dlock's row.
func ours(rows []Row) Row {
	for _, r := range rows {
		if r.Contender == "dlock" {
			return r
		}
	}
	return Row{}
}

// Outcome is the result of a goal in one case. Of several runs the median counts.
type Outcome struct {
	Goal    string
	ratio   bool
	Least   float64
	Was     float64   // what was reached before; 0: not asserted
	Values  []float64 // of the runs that have a figure
	Refused []string  // why the other runs have none
}

// reached reports whether the goal is reached. A goal without a figure is not.
func (o Outcome) reached() bool { return median(o.Values) >= o.Least }

// kept reports whether the earlier figure is reached again, with room: 0.7 requires 0.7 of it. An
// earlier figure above the goal counts as the goal.
func (o Outcome) kept(room float64) bool { return median(o.Values) >= room*min(o.Was, o.Least) }

// outcomes returns the outcomes of the goals that the runs measured.
func outcomes(runs ...*Results) (all []Outcome) {
	for _, g := range goals {
		sc := scenarioOf(g.scenario)
		for i, n := range g.cases {
			o := Outcome{Goal: fmt.Sprintf("%s %s, %d %s: at least %s %s", g.backend, g.scenario, n, sc.of, digits(g.least[i]), g.of.unit), Least: g.least[i], Was: g.was[i], ratio: g.of.ratio}
			for _, r := range runs {
				rows := r.of(g.backend, g.scenario, n)
				if len(ours(rows).Rounds) == 0 {
					continue
				}
				x, refused := g.of.of(sc, rows)
				if refused != "" {
					o.Refused = append(o.Refused, refused)
				} else {
					o.Values = append(o.Values, x)
				}
			}
			if len(o.Values)+len(o.Refused) > 0 {
				all = append(all, o)
			}
		}
	}
	return all
}

func scenarioOf(name string) scenario {
	for _, sc := range scenarios {
		if sc.name == name {
			return sc
		}
	}
	panic("no scenario is called " + name)
}

// of returns the rows of one case.
func (r *Results) of(backend, scenario string, n int) (rows []Row) {
	for _, row := range r.Rows {
		if row.Backend == backend && row.Scenario == scenario && row.Case == n {
			rows = append(rows, row)
		}
	}
	return rows
}

// printGoals prints for each goal whether it was reached.
func printGoals(out io.Writer, all []Outcome) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(out, "\ngoals:")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, o := range all {
		verdict, figure := "MISSED", ""
		for i, v := range o.Values {
			if i > 0 {
				figure += ", "
			}
			figure += digits(v)
		}
		switch {
		case len(o.Values) == 0:
			verdict, figure = "not known", strings.Join(o.Refused, "; ")
		case o.reached():
			verdict = "reached"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", verdict, o.Goal, figure)
	}
	w.Flush()
}
