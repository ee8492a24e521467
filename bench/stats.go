package main

import (
	"fmt"
	"math"
	"slices"
)

// A ratio is meaningless with fewer rounds, or with a wider spread.
const (
	fewest  = 3   // rounds of both sides that count
	loosest = 2.0 // greatest / least of the rounds' ratios
)

// busiest is the greatest share of the machine that other programs may use in a round that counts.
var busiest = 0.15

// Round is what a contender did in one round.
type Round struct {
	Values map[string]float64 // by metric
	Turns  []int              `json:",omitempty"` // of each waiter
	Others float64            // the machine's share of other programs; negative: not known
}

// quiet reports whether the round counts in ratios.
func (r Round) quiet() bool { return r.Others >= 0 && r.Others <= busiest }

// Ratio is the ratio of one contender's median to another's. Least and Greatest are the extremes of
// the ratios of single rounds; of five or more rounds the lowest and the highest do not count. If
// the ratio would be meaningless, Refused says why, and there are no figures.
type Ratio struct {
	Of, Refused            string
	Value, Least, Greatest float64
}

// String is the ratio in a table.
func (r Ratio) String() string {
	if r.Refused != "" {
		return fmt.Sprintf("no ratio to %s: %s", r.Of, r.Refused)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f) × %s", r.Value, r.Least, r.Greatest, r.Of)
}

// compare returns the ratio of ours to theirs, which took their rounds in turns.
func compare(metric, of string, ours, theirs []Round) Ratio {
	r := Ratio{Of: of}
	var a, b, each []float64
	busy, worst, unknown := 0, 0.0, false
	for i := range min(len(ours), len(theirs)) {
		if !ours[i].quiet() || !theirs[i].quiet() {
			busy++
			worst = max(worst, ours[i].Others, theirs[i].Others)
			unknown = unknown || ours[i].Others < 0 || theirs[i].Others < 0
			continue
		}
		x, y := ours[i].Values[metric], theirs[i].Values[metric]
		if x <= 0 || y <= 0 {
			continue
		}
		a, b, each = append(a, x), append(b, y), append(each, x/y)
	}
	switch n := len(each); {
	case n < fewest && unknown:
		r.Refused = "the load of the machine is not known here"
	case n < fewest && busy > 0:
		r.Refused = fmt.Sprintf("other programs used up to %.0f %% of the machine in %d of %d rounds", 100*worst, busy, min(len(ours), len(theirs)))
	case n < fewest:
		r.Refused = fmt.Sprintf("%d rounds are too few", n)
	}
	if r.Refused != "" {
		return r
	}
	slices.Sort(each)
	if len(each) >= 5 {
		each = each[1 : len(each)-1]
	}
	least, greatest := each[0], each[len(each)-1]
	if greatest/least > loosest {
		r.Refused = fmt.Sprintf("the rounds range from %.2f to %.2f", least, greatest)
		return r
	}
	r.Value, r.Least, r.Greatest = median(a)/median(b), least, greatest
	return r
}

// values are the values of a metric in all rounds.
func values(rounds []Round, metric string) (v []float64) {
	for _, r := range rounds {
		if x, ok := r.Values[metric]; ok {
			v = append(v, x)
		}
	}
	return v
}

// median returns the value in the middle, or 0 of none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// shares returns the fewest and the most turns that a waiter had in all rounds together, and the
// mean.
func shares(rounds []Round) (least, most int, mean float64) {
	var turns []int
	for _, r := range rounds {
		if turns == nil {
			turns = make([]int, len(r.Turns))
		}
		for i, n := range r.Turns {
			turns[i] += n
		}
	}
	if len(turns) == 0 {
		return 0, 0, 0
	}
	sum := 0
	for _, n := range turns {
		sum += n
	}
	return slices.Min(turns), slices.Max(turns), float64(sum) / float64(len(turns))
}

// digits prints a figure with as many digits as it deserves.
func digits(x float64) string {
	switch {
	case x == math.Trunc(x) && math.Abs(x) < 1e6:
		return fmt.Sprintf("%.0f", x)
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	case x < 100:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.0f", x)
	}
}
