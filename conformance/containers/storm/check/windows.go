package check

import (
	"cmp"
	"slices"

	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

// windows finds the windows in which grants may be lost. dlock excludes from its promises what
// violates [Exclusion], [Order] and [Linearizable] there, and nothing else: tokens still grow, and
// still protect. There are two kinds of them.
//
// A failover. A replica that is promoted may lack what its master granted last, or what it ended,
// and the old one may go on granting until it is a replica itself. What it granted last is trusted
// for one more TTL, since only the new master renews it. Nothing is lost before the promotion, and
// from the end of the window on all that is trusted was granted or renewed by one master. In
// addition, a hold of the old master may get another, greater token from the new one.
//
// A server's wall clock that was set ahead. Holds expire there, which their clients trust for one
// TTL more at most, since they cannot be renewed any more.
func (c *checker) windows() {
	if !c.Storm.Safe {
		for _, f := range c.History.Failovers {
			w := [2]int64{f.From, c.To}
			if f.To != 0 {
				w[1] = f.To + int64(c.Storm.TTL)
			}
			c.failovers = append(c.failovers, w)
		}
	}
	c.Windows = slices.Clone(c.failovers)
	for _, s := range c.History.Steps {
		c.Windows = append(c.Windows, [2]int64{s[0], s[1] + int64(c.Storm.TTL)})
	}
	slices.SortFunc(c.Windows, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	end := c.To
	if c.Calm != 0 {
		end = c.Calm
	}
	var within, until int64
	for _, w := range c.Windows {
		from := max(w[0], until)
		until = max(until, min(w[1], end))
		within += max(0, until-from)
	}
	c.Within = float64(within) / float64(max(end-c.From, 1))
}

// failedOver reports whether a time lies within the window of a failover at least in part.
func (c *checker) failedOver(from, to int64) bool { return overlap(c.failovers, from, to) }

// touched reports whether a time lies within a window at least in part.
func (c *checker) touched(from, to int64) bool { return overlap(c.Windows, from, to) }

// overlap reports whether one of the windows has a part of a time.
func overlap(windows [][2]int64, from, to int64) bool {
	return slices.ContainsFunc(windows, func(w [2]int64) bool { return from <= w[1] && w[0] <= to })
}

// inWindow reports whether a window explains two holds that are trusted together between two times:
// none is afterwards that was in it.
func (c *checker) inWindow(from, to int64) bool {
	return slices.ContainsFunc(c.Windows, func(w [2]int64) bool { return w[0] <= from && to <= w[1] })
}

// outside returns the calls of a part without the holds of which a window touches a call or a
// lease, and without the refusals that those may explain.
func (c *checker) outside(part []*history.Op) (rest []*history.Op) {
	var touching []*history.Op
	owners := map[string]bool{}
	for _, o := range part {
		if c.touched(o.Called, over(o)) {
			touching = append(touching, o)
			owners[o.Owner] = true
		}
	}
	for _, o := range part {
		switch {
		case o.Held() && owners[o.Owner]:
		case !o.Held() && slices.ContainsFunc(touching, func(q *history.Op) bool { return q.Called <= o.Returned && o.Called <= over(q) }):
		default:
			rest = append(rest, o)
		}
	}
	return rest
}
