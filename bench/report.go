package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// printCase prints the results of all contenders in one case.
func printCase(out io.Writer, sc scenario, rows []Row) {
	if len(rows) == 0 {
		return
	}
	head := rows[0].Backend + " " + sc.name
	if sc.of != "" {
		head += fmt.Sprintf(", %d %s", rows[0].Case, sc.of)
	}
	fmt.Fprintf(out, "\n%s: medians (least–greatest) of %d rounds\n", head, len(rows[0].Rounds))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range table(sc, rows) {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	w.Flush()
	for _, r := range rows {
		if r.Trouble != "" {
			fmt.Fprintf(out, "%s: trouble: %.300s\n", r.Contender, r.Trouble)
		}
	}
}

// table is the rows of one case as cells, the heading first.
func table(sc scenario, rows []Row) [][]string {
	head := []string{"contender"}
	for _, m := range sc.metrics {
		head = append(head, m.title)
	}
	fair := slices.ContainsFunc(rows, func(r Row) bool { return len(r.Rounds) > 0 && len(r.Rounds[0].Turns) > 0 })
	if fair {
		head = append(head, "turns each")
	}
	if !sc.counts {
		head = append(head, "dlock's ratio")
	}
	lines := [][]string{head}
	for _, r := range rows {
		line := []string{r.Contender}
		for _, m := range sc.metrics {
			line = append(line, spread(values(r.Rounds, m.key)))
		}
		if fair {
			line = append(line, fairness(r.Rounds))
		}
		verdict := ""
		if r.Contender == "dlock" {
			verdict = versus(sc, rows)
		} else if r.Bound {
			verdict = "a bound, not a peer"
		}
		if !sc.counts {
			line = append(line, verdict)
		}
		lines = append(lines, line)
	}
	return lines
}

// spread is the median with the least and the greatest value.
func spread(v []float64) string {
	if len(v) == 0 {
		return "–"
	}
	if len(v) == 1 {
		return digits(v[0])
	}
	return fmt.Sprintf("%s (%s–%s)", digits(median(v)), digits(slices.Min(v)), digits(slices.Max(v)))
}

// fairness is the least and the greatest number of turns of a waiter. It says little where there
// were few.
func fairness(rounds []Round) string {
	least, most, mean := shares(rounds)
	if mean < 2 {
		return "too few"
	}
	return fmt.Sprintf("%d–%d", least, most)
}

// versus is dlock's ratio to the best peer, and to the best bound.
func versus(sc scenario, rows []Row) string {
	var all []string
	for _, bound := range []bool{false, true} {
		if r, ok := against(sc, rows, bound); ok {
			all = append(all, r.String())
		}
	}
	return strings.Join(all, "; ")
}

// against compares dlock with the best of its peers, or of the bounds.
func against(sc scenario, rows []Row, bound bool) (Ratio, bool) {
	key := sc.metrics[0].key
	var ours, best *Row
	for i := range rows {
		r := &rows[i]
		switch {
		case len(r.Rounds) == 0:
		case r.Contender == "dlock":
			ours = r
		case r.Bound == bound && (best == nil || sc.better(median(values(r.Rounds, key)), median(values(best.Rounds, key)))):
			best = r
		}
	}
	if ours == nil || best == nil {
		return Ratio{}, false
	}
	return compare(key, best.Contender, ours.Rounds, best.Rounds), true
}

// better reports whether x is better than y in the metric that is compared.
func (sc scenario) better(x, y float64) bool {
	if sc.lower {
		return x < y
	}
	return x > y
}
