package main

import (
	"fmt"
	"os/exec"
	"slices"
	"time"
)

// Four services at once keep two quick cores busy. With a fifth, servers stand still for seconds.
// Two keep those of a slow machine busy, or of one that others use: there four make nothing
// quicker, and servers stand still. So they do there with two, if something computes beside them.
const atOnceQuickly, atOnceSlowly = 4, 2

const (
	// slowly is how long a slow machine takes for a program that does nothing: 7 ms where four
	// services at once were too many, and more than 10 beside busy processes.
	slowly = 5 * time.Millisecond
	// nothing is the word that makes this program do so
	nothing = "nothing"
)

// servicesAtOnce is how many services are tested at once on a machine of that pace.
func (c *check) servicesAtOnce(took time.Duration) int {
	if took < slowly {
		return atOnceQuickly
	}
	c.tests.print(fmt.Sprintf("a slow machine: a program that does nothing takes %s, where a quick one takes less than %s; so %d services are tested at once, not %d, and nothing runs beside them\n",
		took.Round(100*time.Microsecond), slowly, atOnceSlowly, atOnceQuickly))
	return atOnceSlowly
}

// arrange returns what runs side by side: what computes and what needs services, or, where not more
// than two services are tested at once, one after the other.
func arrange(atOnce int, computes, onServers []step) [][]step {
	if atOnce == atOnceSlowly {
		return [][]step{slices.Concat(computes, onServers)}
	}
	return [][]step{computes, onServers}
}

// pace is how long the program takes that does nothing, in the quickest of some rounds. It is
// measured before anything else runs.
func pace(program string) time.Duration {
	const rounds, starts = 3, 20
	best := time.Hour
	for range rounds {
		start := time.Now()
		for range starts {
			if exec.Command(program, nothing).Run() != nil {
				return 0 // it cannot be measured
			}
		}
		best = min(best, time.Since(start)/starts)
	}
	return best
}
