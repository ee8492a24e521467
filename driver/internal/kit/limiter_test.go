package kit

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// TestLimiterLetsUrgentCallsFirst: urgent calls do not wait for ordinary ones that came before
// them.
func TestLimiterLetsUrgentCallsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		l.Enter(1, false)
		var order []string
		come := func(what string, urgent bool) {
			go func() {
				l.Enter(1, urgent)
				order = append(order, what)
				l.Exit()
			}()
			synctest.Wait()
		}
		come("new", false)
		come("new too", false)
		come("release", true)
		come("confirmation", true)
		l.Exit()
		synctest.Wait()
		if got, want := fmt.Sprint(order), "[release confirmation new new too]"; got != want {
			t.Errorf("the order is %s, want %s", got, want)
		}
		if l.running != 0 {
			t.Errorf("%d calls count as running", l.running)
		}
	})
}
