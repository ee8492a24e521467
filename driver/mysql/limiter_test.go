package mysql

import (
	"database/sql"
	"fmt"
	"testing"
	"testing/synctest"
)

// TestLimiterLetsUrgentCallsFirst: urgent calls do not wait for ordinary ones that came before
// them.
func TestLimiterLetsUrgentCallsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(nil)
		defer db.Close()
		db.SetMaxOpenConns(3) // one place
		var l limiter
		l.enter(db, false)
		var order []string
		come := func(what string, urgent bool) {
			go func() {
				l.enter(db, urgent)
				order = append(order, what)
				l.exit()
			}()
			synctest.Wait()
		}
		come("new", false)
		come("new too", false)
		come("release", true)
		come("confirmation", true)
		l.exit()
		synctest.Wait()
		if got, want := fmt.Sprint(order), "[release confirmation new new too]"; got != want {
			t.Errorf("the order is %s, want %s", got, want)
		}
		if l.running != 0 {
			t.Errorf("%d calls count as running", l.running)
		}
	})
}
