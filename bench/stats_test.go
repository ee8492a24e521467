package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/gauge"
)

// rates are rounds with these rates, in a machine of which others had these shares.
func rates(others []float64, rates ...float64) (rounds []Round) {
	for i, x := range rates {
		r := Round{Values: map[string]float64{"rate": x}}
		if others != nil {
			r.Others = others[i]
		}
		rounds = append(rounds, r)
	}
	return rounds
}

// TestCompare: a ratio is that of the medians, with the spread of the rounds.
func TestCompare(t *testing.T) {
	r := compare("rate", "peer", rates(nil, 90, 100, 120), rates(nil, 100, 80, 100))
	if r.Refused != "" || r.Value != 1 || r.Least != 0.9 || r.Greatest != 1.25 {
		t.Errorf("%+v", r)
	}
	if got, want := r.String(), "1.00 (0.90–1.25) × peer"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// of five rounds the outermost two do not count
	r = compare("rate", "peer", rates(nil, 1, 100, 110, 120, 900), rates(nil, 100, 100, 100, 100, 100))
	if r.Refused != "" || r.Value != 1.1 || r.Least != 1 || r.Greatest != 1.2 {
		t.Errorf("%+v", r)
	}
}

// TestRefusals: in place of a meaningless ratio stands the reason.
func TestRefusals(t *testing.T) {
	quiet := rates(nil, 100, 100, 100)
	for name, c := range map[string]struct {
		ours, theirs []Round
		want         string
	}{
		"too few rounds":       {rates(nil, 100, 100), quiet, "2 rounds are too few"},
		"a busy machine":       {rates([]float64{0, 0.5, 0}, 100, 100, 100), quiet, "other programs used up to 50 % of the machine in 1 of 3 rounds"},
		"busy for the peer":    {quiet, rates([]float64{0.2, 0.16, 0}, 100, 100, 100), "other programs used up to 20 % of the machine in 2 of 3 rounds"},
		"a machine not known":  {rates([]float64{-1, -1, -1}, 100, 100, 100), quiet, "the load of the machine is not known here"},
		"rounds that disagree": {rates(nil, 50, 100, 150), quiet, "the rounds range from 0.50 to 1.50"},
		"a round of nothing":   {rates(nil, 100, 0, 100), quiet, "2 rounds are too few"},
	} {
		t.Run(name, func(t *testing.T) {
			r := compare("rate", "peer", c.ours, c.theirs)
			if r.Refused != c.want || r.Value != 0 {
				t.Errorf("%+v, want it refused: %s", r, c.want)
			}
			if !strings.Contains(r.String(), c.want) {
				t.Errorf("%q does not say why", r)
			}
		})
	}
	// a busy round does not count where enough others do
	r := compare("rate", "peer", rates([]float64{0, 0, 0.9, 0}, 100, 100, 1, 100), rates(nil, 50, 50, 50, 50))
	if r.Refused != "" || r.Value != 2 {
		t.Errorf("%+v", r)
	}
}

func TestMedianAndPercentile(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(c.v); got != c.want {
			t.Errorf("median of %v: %v", c.v, got)
		}
	}
	var v []time.Duration
	for i := range 100 {
		v = append(v, time.Duration(99-i))
	}
	if p50, p99 := gauge.Percentile(v, 50), gauge.Percentile(v, 99); p50 != 50 || p99 != 99 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
	if gauge.Percentile([]time.Duration(nil), 50) != 0 {
		t.Error("a percentile of nothing")
	}
}

func TestShares(t *testing.T) {
	least, most, mean := shares([]Round{{Turns: []int{1, 5, 3}}, {Turns: []int{1, 0, 2}}})
	if least != 2 || most != 5 || mean != 4 {
		t.Errorf("%d to %d, %v", least, most, mean)
	}
}

// TestOthers: the time of a process that has ended is its parent's, and none of it is lost; the
// descendants of our processes and the kernel do not count as others.
func TestOthers(t *testing.T) {
	p := func(line string) proc {
		p, ok := parse([]byte(line))
		if !ok {
			t.Fatalf("%q is not read", line)
		}
		return p
	}
	all := []proc{
		p("1 (init) S 0 1 1 0 -1 0 0 0 0 0 10 20 300 400 20 0"),
		p("2 (kthreadd) S 0 0 0 0 -1 0 0 0 0 0 1000 0 0 0 20 0"),
		p("9 (kworker) S 2 0 0 0 -1 0 0 0 0 0 5000 0 0 0 20 0"),
		p("40 (a) b) c) S 1 0 0 0 -1 0 0 0 0 0 1 2 3 4 20 0"),
		p("50 (bench) S 1 0 0 0 -1 0 0 0 0 0 70000 0 0 0 20 0"),
		p("51 (java) S 50 0 0 0 -1 0 0 0 0 0 90000 0 0 0 20 0"),
	}
	if got := others(all, []int{50}); got != 740 {
		t.Errorf("others had %d ticks, want those of 1 and 40", got)
	}
	ended := slices.DeleteFunc(slices.Clone(all), func(p proc) bool { return p.pid == 40 })
	ended[0].ticks += 10
	if got := others(ended, []int{50}); got != 740 {
		t.Errorf("others had %d ticks after one had ended", got)
	}
}
