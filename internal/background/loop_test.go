package background

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

var loop = Loop{Min: 20 * time.Millisecond, Max: time.Second}

func TestFailuresMakeThePausesLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		done := loop.Run(t.Context(), func(context.Context) Step {
			if at = append(at, time.Now()); len(at) == 20 {
				return Done
			}
			return Failed
		})
		if !done {
			t.Error("the loop ended before its work was done")
		}
		pause := loop.Min
		for i, later := range at[1:] {
			if got := later.Sub(at[i]); got < pause/2 || got > 3*pause/2 {
				t.Errorf("pause %d is %s, want %s or half of that more or less", i+1, got, pause)
			}
			pause = min(2*pause, loop.Max)
		}
	})
}

func TestASuccessGoesOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := []Step{Failed, Failed, Failed, Failed, Next, Next, Failed, Done}
		var at []time.Time
		loop.Run(t.Context(), func(context.Context) Step {
			at = append(at, time.Now())
			return steps[len(at)-1]
		})
		if !at[5].Equal(at[4]) || !at[6].Equal(at[5]) {
			t.Error("a pause after a success")
		}
		if got := at[7].Sub(at[6]); got > 3*loop.Min/2 {
			t.Errorf("the first pause after a success is %s", got)
		}
	})
}

func TestTheEndOfTheContextEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		steps, ended := 0, make(chan bool)
		go func() {
			ended <- loop.Run(ctx, func(context.Context) Step { steps++; return Failed })
		}()
		synctest.Wait()
		cancel()
		if <-ended || steps != 1 {
			t.Errorf("%d steps, and then done", steps)
		}
		if loop.Run(ctx, func(context.Context) Step { steps++; return Done }) || steps != 1 {
			t.Error("a step after the end")
		}
	})
}

func TestWakeEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wake := make(chan struct{}, 1)
		l := Loop{Min: time.Hour, Max: time.Hour, Wake: wake}
		began, steps := time.Now(), 0
		wake <- struct{}{}
		l.Run(t.Context(), func(context.Context) Step {
			if steps++; steps == 2 {
				return Done
			}
			return Failed
		})
		if time.Since(began) != 0 {
			t.Errorf("the pause lasted %s", time.Since(began))
		}
	})
}
