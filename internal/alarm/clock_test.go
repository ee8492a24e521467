package alarm

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestClock: each function is called at its time, in whatever order the alarms were set, and not if
// it was stopped before.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Clock
		for range 3 { // also after all have been called, and a timer has fired without an alarm
			start := time.Now()
			rang := make(chan time.Duration, 100)
			for _, i := range rand.Perm(50) {
				at := time.Duration(1+i/2) * time.Second // two at a time
				stop := a.After(at, func() {
					if now := time.Since(start); now != at {
						t.Errorf("the alarm after %s was called after %s", at, now)
					}
					rang <- at
				})
				if i%5 == 0 && !stop() {
					t.Error("an alarm that was stopped at once had been called")
				}
			}
			time.Sleep(time.Minute)
			if len(rang) != 40 {
				t.Errorf("%d of 40 alarms were called", len(rang))
			}
		}
		late := a.After(time.Second, func() {})
		time.Sleep(time.Second)
		synctest.Wait()
		if late() {
			t.Error("an alarm was stopped that had been called")
		}
	})
}

// TestClockOfShortCalls: short calls, one after the other, set the timer only once per time limit
// of a call.
func TestClockOfShortCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Clock
		times := map[time.Time]bool{}
		for range 1000 {
			stop := a.After(time.Second, func() { t.Error("a call that was answered was ended") })
			a.mu.Lock()
			times[a.armed] = true
			a.mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			if !stop() {
				t.Error("a call that was answered had been ended")
			}
		}
		if len(times) > 11 {
			t.Errorf("the timer was set %d times in ten seconds; want once in each", len(times))
		}
	})
}
