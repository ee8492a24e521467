// Package background has a loop for work that is finished in the background because the caller
// could not wait for it, above all a release whose outcome is unknown. The portable layer and the
// drivers share it.
package background

import (
	"context"
	"math/rand/v2"
	"time"
)

// Step is the result of one step of a [Loop].
type Step int

const (
	// Failed means that the step has to be tried again, after a pause.
	Failed Step = iota
	// Next means that the step succeeded and that more may be left: the loop goes on at once.
	Next
	// Done means that nothing is left: the loop ends.
	Done
)

// Loop repeats a step until nothing is left to do.
type Loop struct {
	// Min is the pause after a failure, Max the longest one. Each further failure in a row doubles
	// the pause. The pauses vary by half, so that clients that failed together do not retry
	// together.
	Min, Max time.Duration

	// A value from Wake ends a pause: a change makes a retry worthwhile. Wake may be nil.
	Wake <-chan struct{}
}

// Run calls step until it returns Done, or until ctx ends. It reports whether step returned Done.
func (l Loop) Run(ctx context.Context, step func(context.Context) Step) bool {
	pause := l.Min
	for ctx.Err() == nil {
		switch step(ctx) {
		case Done:
			return true
		case Next:
			pause = l.Min
			continue
		}
		t := time.NewTimer(pause/2 + rand.N(max(pause, 1)))
		select {
		case <-t.C:
		case <-l.Wake:
		case <-ctx.Done():
		}
		t.Stop()
		pause = min(2*pause, l.Max)
	}
	return false
}
