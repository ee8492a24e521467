package main

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
)

// row is a cost that a scenario measures.
type row struct {
	key, title string

	// per makes a cost of the difference between many and few, divided by their number
	per bool

	exact bool // it is counted: a busy machine, and small numbers, do not change it

	bound // of backends that have none of their own
}

// bound is what a cost has to keep. Without any it is shown, and kept.
type bound struct {
	times float64 // at most this multiple of the cost of few, and some slack
	slack float64
	share float64 // at least this share of what few do
	most  float64 // at most so much; negative: nothing
}

// promise is a bound of a backend, or a number of things that suits it, and what its page says.
type promise struct {
	bound
	says  string // a part of the page
	count int
}

// String says what is allowed.
func (b bound) String() string {
	switch {
	case b.times > 0 && b.slack > 0:
		return fmt.Sprintf("≤ %s × few + %s", digits(b.times), digits(b.slack))
	case b.times > 0:
		return fmt.Sprintf("≤ %s × few", digits(b.times))
	case b.share > 0:
		return fmt.Sprintf("≥ %s × few", digits(b.share))
	case b.most < 0:
		return "0"
	case b.most > 0:
		return "≤ " + digits(b.most)
	}
	return ""
}

// keeps reports whether the bound is kept.
func (b bound) keeps(few, many float64) bool {
	switch {
	case b.times > 0:
		return many <= b.times*few+b.slack
	case b.share > 0:
		return many >= b.share*few
	case b.most < 0:
		return many <= 0
	case b.most > 0:
		return many <= b.most
	}
	return true
}

// line is a row of a table: a cost of a backend.
type line struct {
	title, few, many, bound, says string
	missed, exact                 bool
}

// lines are the rows of a result.
func (r report) lines(x result) (all []line) {
	if x.trouble != nil {
		return []line{{title: x.name, many: strings.ReplaceAll(fmt.Sprintf("%.200s", x.trouble), "\n", " "), missed: true}}
	}
	for _, row := range x.rows {
		few, is := x.few[row.key]
		many, too := x.many[row.key]
		if !is || !too {
			continue
		}
		p := promise{bound: row.bound, says: general[x.name+" "+row.key].says}
		if own, is := r.bounds[x.name+" "+row.key]; is {
			if p.says = own.says; own.bound != (bound{}) {
				p.bound = own.bound
			}
		}
		l := line{title: row.title, few: digits(few), bound: p.bound.String(), says: p.says, exact: row.exact}
		if row.per {
			l.few = ""
			many = (many - few) / float64(x.most-x.scenario.few)
		}
		l.many, l.missed = digits(many), !p.keeps(few, many)
		all = append(all, l)
	}
	return all
}

// missed reports whether a bound was missed, or something was not measured.
func (r report) missed() bool {
	for _, x := range r.results {
		for _, l := range r.lines(x) {
			if l.missed {
				return true
			}
		}
	}
	return false
}

// text is the report for a terminal.
func (r report) text() string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	for _, x := range r.results {
		fmt.Fprintf(w, "%s: %d and %d %s (%s)\n", x.name, x.scenario.few, x.most, x.of, x.took)
		for _, l := range r.lines(x) {
			mark := ""
			if l.missed {
				mark = "MISSED"
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", l.title, l.few, l.many, l.bound, mark)
		}
	}
	w.Flush()
	return s.String()
}

// digits prints a figure with as many digits as it deserves.
func digits(x float64) string {
	switch a := math.Abs(x); {
	case x == math.Trunc(x), a >= 100:
		return fmt.Sprintf("%.0f", x)
	case a >= 10:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}
