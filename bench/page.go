package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dlock-go/dlock/conformance/containers/page"
)

// writePage writes the tables of a run into the page, and its plots into the folder plots beside
// it.
func writePage(name string, r *Results) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	whole := string(text)
	if whole, err = page.Put(whole, "run", about(r)); err != nil {
		return err
	}
	for _, sc := range scenarios {
		body := sc.title + ".\n\n" + markdown(sc, r)
		if len(sc.cases) > 1 {
			drawn, err := plots(filepath.Join(filepath.Dir(name), "plots"), sc, r)
			if err != nil {
				return err
			}
			for _, p := range drawn {
				body += fmt.Sprintf("\n![%s](plots/%s)", strings.TrimSuffix(p, ".svg"), p)
			}
			body += "\n"
		}
		if whole, err = page.Put(whole, sc.name, body); err != nil {
			return err
		}
	}
	return os.WriteFile(name, []byte(whole), 0o644)
}

// about describes a run.
func about(r *Results) string {
	return fmt.Sprintf("Measured in %s on %s. Clients and servers ran on one machine, over the loopback. Versions: %s.\n",
		r.When.Format("January 2006"), r.Machine, strings.Join(r.Versions, ", "))
}

// markdown is the table of a scenario.
func markdown(sc scenario, r *Results) string {
	if len(sc.cases) > 1 {
		return caseTable(sc, r)
	}
	return metricTable(sc, r)
}

// caseTable has a column for each case.
func caseTable(sc scenario, r *Results) string {
	var t strings.Builder
	head, rule := "| | "+sc.of, "|---|---"
	for _, n := range sc.cases {
		head += fmt.Sprintf(" | %d", n)
		rule += "|---"
	}
	fmt.Fprintf(&t, "%s |\n%s|\n", head, rule)
	for _, b := range backends {
		contenders, cells := r.grid(b.name, sc, true)
		name := "**" + b.name + "**"
		for i, c := range contenders {
			fmt.Fprintf(&t, "| %s | %s", name, c)
			if cells[i][0].Bound {
				t.WriteString(" (a bound)")
			}
			name = ""
			for _, row := range cells[i] {
				fmt.Fprintf(&t, " | %s", cell(sc, row))
			}
			t.WriteString(" |\n")
		}
		if len(contenders) == 0 {
			continue
		}
		t.WriteString("| | *dlock relative to the best peer*")
		for j := range sc.cases {
			fmt.Fprintf(&t, " | %s", toBestPeer(sc, column(cells, j)))
		}
		t.WriteString(" |\n")
	}
	return t.String()
}

// cell has one contender in one case: the metric that is compared, and below it the other metrics.
func cell(sc scenario, row Row) string {
	if len(row.Rounds) == 0 {
		return "–"
	}
	text := spread(values(row.Rounds, sc.metrics[0].key))
	var more []string
	for _, m := range sc.metrics[1:] {
		more = append(more, digits(median(values(row.Rounds, m.key))))
	}
	if len(more) > 0 {
		text += "<br>" + strings.Join(more, " / ") + " ms"
	}
	if len(row.Rounds[0].Turns) > 0 {
		text += "; " + fairness(row.Rounds)
	}
	return text
}

func column(cells [][]Row, j int) (rows []Row) {
	for _, line := range cells {
		rows = append(rows, line[j])
	}
	return rows
}

// toBestPeer is dlock's ratio, or the reason for which there is none.
func toBestPeer(sc scenario, rows []Row) string {
	r, ok := against(sc, rows, false)
	if !ok {
		return "no peer"
	}
	return r.String()
}

// metricTable has a column for each metric.
func metricTable(sc scenario, r *Results) string {
	var t strings.Builder
	head, rule := "| | ", "|---|---"
	for _, m := range sc.metrics {
		head += " | " + m.title
		rule += "|---"
	}
	if !sc.counts {
		head += " | dlock relative to the best peer"
		rule += "|---"
	}
	fmt.Fprintf(&t, "%s |\n%s|\n", head, rule)
	for _, b := range backends {
		contenders, cells := r.grid(b.name, sc, true)
		name := "**" + b.name + "**"
		for i, c := range contenders {
			fmt.Fprintf(&t, "| %s | %s", name, c)
			name = ""
			for _, m := range sc.metrics {
				fmt.Fprintf(&t, " | %s", spread(values(cells[i][0].Rounds, m.key)))
			}
			if !sc.counts {
				verdict := ""
				if c == "dlock" {
					verdict = toBestPeer(sc, column(cells, 0))
				}
				t.WriteString(" | " + verdict)
			}
			t.WriteString(" |\n")
		}
	}
	return t.String()
}
