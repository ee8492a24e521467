package service

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/internal/stall"
)

// standing is a server that answers unless it is asked to stand still.
func standing(t *testing.T) (m *Monitor, stands *atomic.Bool) {
	stands = new(atomic.Bool)
	s := &Server{Kind: Kind{Ask: func(context.Context, string) (string, error) {
		if stands.Load() {
			return "", errors.New("no answer")
		}
		return "standing 1", nil
	}}}
	m = NewMonitor(s)
	t.Cleanup(m.Stop)
	return m, stands
}

func TestTrialIsRunAgainAfterAStandstill(t *testing.T) {
	m, stands := standing(t)
	for what, fails := range map[string]func(*Trial){
		"an error":            func(t *Trial) { t.Errorf("an error") },
		"an end":              func(t *Trial) { t.Fatalf("%s", "an end") },
		"an error of a part":  func(t *Trial) { t.Run("of it", func(t *Trial) { t.Errorf("an error") }) },
		"an end of a part":    func(t *Trial) { t.Run("of it", func(t *Trial) { t.Fatalf("%s", "an end") }) },
		"an error afterwards": func(t *Trial) { t.Run("of it", func(t *Trial) { t.Cleanup(func() { t.Error("late") }) }) },
	} {
		var runs []string
		m.Try(t, what, func(t *Trial) {
			runs = append(runs, t.Name())
			if len(runs) > 1 {
				return
			}
			stands.Store(true)
			await.That(t, "the server stood still", func() bool { return m.Longest(t.run.Began) >= standstill })
			stands.Store(false)
			fails(t)
		})
		if len(runs) != 2 {
			t.Errorf("%s: there were the runs %q; want two", what, runs)
		}
	}
}

// counting is a test that counts its failures.
type counting struct {
	testing.TB
	errors, fatals, skips int
}

func (c *counting) Error(...any) { c.errors++ }
func (c *counting) Fatal(...any) { c.fatals++ }
func (c *counting) SkipNow()     { c.skips++; runtime.Goexit() }

func TestTrialFailures(t *testing.T) {
	for what, tt := range map[string]struct {
		stands func(*testing.T) *stall.Run
		count  bool
	}{
		"the server stands still": {func(t *testing.T) *stall.Run {
			m, stands := standing(t)
			r := &stall.Run{Monitor: m.Monitor, Began: time.Now()}
			stands.Store(true)
			<-time.After(standstill)
			return r
		}, false},
		"it stood still before the run": {func(t *testing.T) *stall.Run {
			m, stands := standing(t)
			stands.Store(true)
			<-time.After(2 * standstill)
			stands.Store(false)
			<-time.After(2 * askPause)
			if d := m.Longest(time.Now().Add(-standstill)); d < standstill {
				t.Errorf("a standstill of %s was seen", d)
			}
			return &stall.Run{Monitor: m.Monitor, Began: time.Now()}
		}, true},
		"the part says so": {func(t *testing.T) *stall.Run {
			m, _ := standing(t)
			r := &stall.Run{Monitor: m.Monitor, Began: time.Now()}
			<-time.After(time.Millisecond)
			(&Trial{run: r}).Stalled()
			return r
		}, false},
		"the last run": {func(t *testing.T) *stall.Run { return nil }, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &counting{TB: t}
			r := &Trial{TB: c, run: tt.stands(t)}
			over := make(chan struct{})
			go func() {
				defer close(over)
				r.Errorf("an error")
				r.Fatalf("an end")
			}()
			<-over
			got, want := fmt.Sprint(c.errors, c.fatals, c.skips, r.Void()), "0 0 1 true"
			if tt.count {
				want = "1 1 0 false"
			}
			if got != want {
				t.Errorf("%s: %s errors, ends, skips, and whether it is void; want %s", what, got, want)
			}
			if Strict(r) != testing.TB(c) || Strict(t) != testing.TB(t) {
				t.Errorf("%s: what is strict is excused", what)
			}
		})
	}
}
