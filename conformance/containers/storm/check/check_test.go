package check

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

// tale is a history that is written by hand. Its times are milliseconds.
type tale struct {
	events []history.Event
	ops    uint64
	storm  history.Storm
	calm   float64 // 0: it was interrupted before that
	cut    bool    // it was interrupted after that
}

const ms = int64(time.Millisecond)

func newTale() *tale {
	return &tale{storm: history.Storm{TTL: 100 * time.Millisecond, Queue: true, Fencing: true, Lanes: 4, Patience: time.Second}, calm: 5000}
}

func (t *tale) add(at float64, e history.Event) {
	e.At = int64(at*1e6) + ms // 0 would be no time
	t.events = append(t.events, e)
}

// call is one call of Lock of a process, on the lock "x" unless a change says otherwise.
type call struct {
	t    *tale
	op   uint64
	proc int
}

func (t *tale) lock(proc int, at float64, change ...func(*history.Event)) call {
	t.ops++
	e := history.Event{Kind: history.Call, Proc: proc, Op: t.ops, Name: "x"}
	for _, c := range change {
		c(&e)
	}
	t.add(at, e)
	return call{t, t.ops, proc}
}

func shared(e *history.Event) { e.Shared = true }
func try(e *history.Event)    { e.Try = true }
func permit(e *history.Event) { e.Shared, e.Limit = true, 2 }

func under(c call) func(*history.Event)    { return func(e *history.Event) { e.Parent = c.op } }
func joins(id string) func(*history.Event) { return func(e *history.Event) { e.Joins = id } }

func (c call) add(at float64, e history.Event) call {
	e.Proc, e.Op = c.proc, c.op
	c.t.add(at, e)
	return c
}

func (c call) granted(at float64, owner string, token uint64, until float64) call {
	return c.add(at, history.Event{Kind: history.Granted, ID: owner, Token: token, Until: int64(until*1e6) + ms})
}

func (c call) refused(at float64, class history.Class) call {
	return c.add(at, history.Event{Kind: history.Refused, Class: class})
}

func (c call) unlock(at, returns float64, class history.Class) call {
	c.add(at, history.Event{Kind: history.Unlock})
	return c.add(returns, history.Event{Kind: history.Unlocked, Class: class})
}

func (c call) look(at, until float64, class history.Class) call {
	return c.add(at, history.Event{Kind: history.Look, Until: int64(until*1e6) + ms, Class: class})
}

// seen records a reading of the queue. A place is an ID and when it arrived.
func (t *tale) seen(at float64, places ...any) {
	e := history.Event{Kind: history.Seen, Proc: -1, Name: "x", From: int64(at*1e6) + ms}
	for i := 0; i < len(places); i += 2 {
		e.Waiters = append(e.Waiters, history.Place{ID: places[i].(string), Arrived: int64(places[i+1].(int)) * ms})
	}
	t.add(at, e)
}

func (t *tale) holds(at float64, id string, arrived int, token uint64) {
	t.add(at, history.Event{Kind: history.Seen, Proc: -1, Name: "x", From: int64(at*1e6) + ms,
		Holders: []history.Place{{ID: id, Arrived: int64(arrived) * ms, Token: token}}})
}

func (t *tale) check() *Report {
	if t.calm > 0 {
		t.add(t.calm, history.Event{Kind: history.Calm, Proc: -1})
	}
	if t.calm > 0 && !t.cut {
		t.add(t.calm, history.Event{Kind: history.Finished, Proc: -1})
	}
	s := t.storm
	t.add(-0.5, history.Event{Kind: history.Settings, Proc: -1, Storm: &s})
	return History(history.New(t.events))
}

// laws returns the laws that are violated, each once.
func (r *Report) laws() []Law {
	var all []Law
	for _, v := range r.Violations {
		all = append(all, v.Law)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestLaws: each kind of violation is reported under its name, and under no other one that does not
// follow from it; what resembles it and is allowed is not reported.
func TestLaws(t *testing.T) {
	for name, c := range map[string]struct {
		write func(*tale)
		want  []Law
	}{
		"two holders, one after the other": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(5, 6, "")
			t.lock(2, 2).granted(5.5, "b", 2, 95).unlock(8, 9, "")
		}, nil},
		"two holders together": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(5, 6, "")
			t.lock(2, 2).granted(3, "b", 2, 95).unlock(8, 9, "")
		}, []Law{Exclusion, Linearizable}},
		"a reader with a writer": {func(t *tale) {
			t.lock(1, 0, shared).granted(1, "a", 1, 90).unlock(5, 6, "")
			t.lock(2, 2).granted(3, "b", 2, 95).unlock(8, 9, "")
		}, []Law{Exclusion, Linearizable}},
		"two readers together": {func(t *tale) {
			t.lock(1, 0, shared).granted(1, "a", 1, 90).unlock(5, 6, "")
			t.lock(2, 2, shared).granted(3, "b", 2, 95).unlock(8, 9, "")
		}, nil},
		"three permits of two": {func(t *tale) {
			for i := range 3 {
				t.lock(i, 0, permit).granted(1, fmt.Sprint("a", i), uint64(i)+1, 90).unlock(5, 6, "")
			}
		}, []Law{Exclusion, Linearizable}},
		"a permit that joins another one": {func(t *tale) {
			t.lock(1, 0, permit).granted(1, "a", 1, 90).unlock(5, 6, "")
			t.lock(2, 0, permit).granted(1, "b", 2, 90).unlock(5, 6, "")
			t.lock(3, 2, permit, joins("a")).granted(3, "a", 1, 90).unlock(5, 6, "")
		}, nil},
		"a holder that was lost in time": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			t.lock(2, 2).granted(91, "b", 2, 190).unlock(100, 101, "")
			a.unlock(150, 151, history.Loss)
		}, nil},
		"a hold that expired early": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			t.lock(2, 2).granted(80, "b", 2, 180).unlock(100, 101, "")
			a.unlock(150, 151, history.Loss)
		}, []Law{Exclusion, Linearizable}},
		"a renewal moved the end": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).add(30, history.Event{Kind: history.Trust, Until: 121 * ms}).unlock(150, 151, history.Loss)
			t.lock(2, 2).granted(100, "b", 2, 200).unlock(110, 111, "")
		}, []Law{Exclusion, Linearizable}},
		"a loss that was signalled before the next grant": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).add(10, history.Event{Kind: history.Lost}).unlock(50, 51, history.Loss)
			t.lock(2, 2).granted(11, "b", 2, 100).unlock(20, 21, "")
		}, nil},
		"a holder that was killed": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90)
			t.add(5, history.Event{Kind: history.Killed, Proc: 1})
			t.lock(2, 2).granted(6, "b", 2, 100).unlock(7, 8, "")
		}, nil},
		"a downgrade and a join": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			t.lock(1, 2, shared, under(a)).granted(3, "a", 1, 90).unlock(10, 11, "")
			a.unlock(4, 5, "")
			t.lock(2, 4, shared).granted(5, "b", 2, 95).unlock(12, 13, "")
		}, nil},
		"a writer beside a downgrade": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			t.lock(1, 2, shared, under(a)).granted(3, "a", 1, 90).unlock(10, 11, "")
			a.unlock(4, 5, "")
			t.lock(2, 4).granted(5, "b", 2, 95).unlock(12, 13, "")
		}, []Law{Exclusion, Linearizable}},
		"a join of a hold that has ended": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(2, 3, "")
			t.lock(2, 5, joins("a")).granted(6, "a", 1, 90).unlock(7, 8, "")
		}, []Law{Linearizable}},
		"a refusal of a lock that is free": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(2, 3, "")
			t.lock(2, 5, try).refused(6, history.Held)
			t.lock(1, 5.5).granted(7, "b", 2, 90).unlock(8, 9, "") // it may have waited ahead
			t.lock(3, 20, try).refused(21, history.Held)
		}, []Law{Linearizable}},
		"a refusal of a lock that is held": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(10, 11, "")
			t.lock(2, 5, try).refused(6, history.Held)
		}, nil},

		"a look after the end that finds a lease": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).look(95, 90, "").unlock(96, 97, history.Loss)
		}, []Law{Loss}},
		"a look after the end that finds the loss": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).look(95, 90, history.Loss).unlock(96, 97, history.Loss)
		}, nil},
		"a look that a renewal overtook": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).look(95, 140, "").unlock(96, 97, "")
		}, nil},
		"an unlock after the end that succeeds": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).add(95, history.Event{Kind: history.Unlock}).add(96, history.Event{Kind: history.Unlocked, Until: 91 * ms})
		}, []Law{Loss}},
		"a re-entry after the end": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			t.lock(1, 95, under(a)).granted(96, "a", 1, 90).unlock(97, 98, history.Loss)
			a.unlock(98, 99, history.Loss)
		}, []Law{Loss}},

		"a re-entry after the end that has an end of its own": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			t.lock(1, 95, under(a)).granted(96, "a", 1, 190).unlock(97, 98, "")
			a.unlock(98, 99, history.Loss)
		}, []Law{Loss}},
		"a re-entry after the loss": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			a.add(10, history.Event{Kind: history.Lost})
			t.lock(1, 20, under(a)).granted(21, "a", 1, 90).unlock(22, 23, "")
			a.unlock(98, 99, history.Loss)
		}, []Law{Loss}},
		"a re-entry after a renewal": {func(t *tale) {
			a := t.lock(1, 0).granted(1, "a", 1, 90)
			a.add(30, history.Event{Kind: history.Trust, Until: 121 * ms})
			t.lock(1, 95, under(a)).granted(96, "a", 1, 120).unlock(97, 98, "")
			a.unlock(98, 99, "")
		}, nil},

		"a token that falls": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 7, 90).unlock(2, 3, "")
			t.lock(2, 4).granted(5, "b", 6, 95).unlock(8, 9, "")
		}, []Law{Linearizable, Tokens}},
		"a reader's token that falls below a writer's": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 7, 90).unlock(2, 3, "")
			t.lock(2, 4, shared).granted(5, "b", 6, 95).unlock(8, 9, "")
		}, []Law{Linearizable, Tokens}},
		"one token twice": {func(t *tale) {
			t.lock(1, 0, shared).granted(1, "a", 7, 90).unlock(2, 3, "")
			t.lock(2, 0, shared).granted(1, "b", 7, 95).unlock(8, 9, "")
		}, []Law{Tokens}},
		"two tokens of one hold": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 7, 90).unlock(5, 6, "")
			t.lock(2, 2, joins("a")).granted(3, "a", 8, 95).unlock(4, 4.5, "")
		}, []Law{Tokens}},
		"tokens of permits": {func(t *tale) {
			t.lock(1, 0, permit).granted(1, "a", 7, 90).unlock(2, 3, "")
			t.lock(2, 4, permit).granted(5, "b", 6, 95).unlock(8, 9, "")
		}, nil},

		"a waiter that is overtaken": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(10, 11, "")
			w := t.lock(2, 2)
			t.seen(3, "w", 2)
			t.lock(3, 4).granted(12, "o", 2, 100).unlock(13, 14, "")
			t.seen(20, "w", 2)
			w.granted(30, "w", 3, 120).unlock(31, 32, "")
		}, []Law{Order}},
		"a waiter that is overtaken by one behind it": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(10, 11, "")
			w := t.lock(2, 2)
			o := t.lock(3, 2)
			t.seen(4, "w", 2, "o", 3)
			o.granted(12, "o", 2, 100).unlock(13, 14, "")
			t.holds(15, "w", 2, 3)
			w.granted(15.5, "w", 3, 120).unlock(31, 32, "")
		}, []Law{Order}},
		"a waiter that lost its place": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(10, 11, "")
			w := t.lock(2, 2)
			t.seen(3, "w", 2)
			t.lock(3, 4).granted(600, "o", 2, 700).unlock(613, 614, "")
			t.seen(610, "w", 500)
			w.granted(630, "w", 3, 720).unlock(631, 632, "")
		}, nil},
		"a waiter that had two places, and lost the first": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(20, 21, "")
			w := t.lock(2, 2)
			o := t.lock(3, 2)
			t.seen(10, "w", 2, "o", 4, "w", 6)
			o.granted(22, "o", 2, 110).unlock(23, 24, "")
			t.seen(30, "w", 6)
			w.granted(32, "w", 3, 120).unlock(33, 34, "")
		}, nil},
		"readers behind a writer that is overtaken": {func(t *tale) {
			t.lock(1, 0, shared).granted(1, "a", 1, 90).unlock(10, 11, "")
			w := t.lock(2, 2)
			t.seen(3, "w", 2)
			t.lock(3, 4, shared).granted(5, "o", 2, 100).unlock(6, 7, "")
			t.seen(8, "w", 2)
			w.granted(12, "w", 3, 120).unlock(31, 32, "")
		}, []Law{Order}},
		"a join passes the queue": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(10, 11, "")
			w := t.lock(2, 2)
			t.seen(3, "w", 2)
			t.lock(3, 4, joins("a")).granted(5, "a", 1, 100).unlock(6, 7, "")
			t.seen(8, "w", 2)
			w.granted(12, "w", 3, 120).unlock(31, 32, "")
		}, nil},

		"an Unlock that returns too late": {func(t *tale) {
			t.lock(1, 10).granted(20, "a", 1, 90).unlock(30, t.calm+40_000, "")
		}, []Law{Progress}},
		"work that does not end": {func(t *tale) {
			t.lock(1, 10).granted(20, "a", 1, 90).unlock(30, 31, "")
			t.add(t.calm+70_000, history.Event{Kind: history.Hung, Proc: 1})
		}, []Law{Progress}},
		"a waiter that is forgotten": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).unlock(2, 3, "")
			t.lock(2, 1)
		}, []Law{Progress}},
		"a waiter that is served too late": {func(t *tale) {
			t.lock(2, 1).granted(6500, "b", 2, 6590).unlock(6501, 6502, "")
		}, []Law{Progress}},
		"a waiter that was killed": {func(t *tale) {
			t.lock(2, 1)
			t.add(3, history.Event{Kind: history.Killed, Proc: 2})
		}, nil},
		"an unlock that hangs": {func(t *tale) {
			t.lock(1, 0).granted(1, "a", 1, 90).add(2, history.Event{Kind: history.Unlock})
		}, []Law{Progress}},

		"a request that remains": {func(t *tale) {
			t.add(6000, history.Event{Kind: history.Remains, Proc: -1, Name: "x", Count: 1})
		}, []Law{Remains}},

		"goroutines that remain": {func(t *tale) {
			t.add(1, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Goroutines: 5}})
			t.add(6000, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Goroutines: 6}})
		}, []Law{Baseline}},
		"connections that remain": {func(t *tale) {
			t.add(1, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Connections: 1}})
			t.add(6000, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Connections: 6}})
		}, []Law{Baseline}},
		"connections to several servers": {func(t *tale) {
			t.storm.Nodes = 3
			t.add(1, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Connections: 1}})
			t.add(6000, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Connections: 13}})
		}, nil},
		"memory that remains": {func(t *tale) {
			t.add(1, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Heap: 1 << 20}})
			t.add(6000, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Heap: 8 << 20}})
		}, []Law{Baseline}},
		"what a process needs for its work": {func(t *tale) {
			t.add(1, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Goroutines: 5, Connections: 1, Heap: 1 << 20}})
			t.add(6000, history.Event{Kind: history.Usage, Proc: 1, Uses: &history.Uses{Goroutines: 5, Connections: 4, Heap: 3 << 20}})
		}, nil},

		"an update that the fenced register loses": {func(t *tale) {
			for i, n := range []int64{1, 2, 2} {
				t.add(float64(i), history.Event{Kind: history.Write, Proc: -1, Name: "x", Text: Fenced, Token: uint64(i) + 1, Count: n})
			}
		}, []Law{Fencing}},
		"a stale token that the fenced register takes": {func(t *tale) {
			for i, token := range []uint64{5, 6, 5} {
				t.add(float64(i), history.Event{Kind: history.Write, Proc: -1, Name: "x", Text: Fenced, Token: token, Count: int64(i) + 1})
			}
		}, []Law{Fencing}},
	} {
		t.Run(name, func(t *testing.T) {
			story := newTale()
			c.write(story)
			r := story.check()
			if got := r.laws(); !slices.Equal(got, c.want) {
				t.Errorf("reported %v, want %v:\n%v", got, c.want, r.Violations)
			}
		})
	}
}

// TestBites: updates that the plain register lost are counted, and are no violation.
func TestBites(t *testing.T) {
	story := newTale()
	for i, n := range []int64{1, 2, 2, 3} {
		story.add(float64(i), history.Event{Kind: history.Write, Proc: -1, Name: "x", Text: Plain, Count: n})
	}
	story.add(9, history.Event{Kind: history.Write, Proc: -1, Name: "x", Text: Fenced, Count: 2, Class: history.Stale})
	r := story.check()
	if len(r.Violations) > 0 || r.Updates != 4 || r.LostThere != 1 || r.Refused != 1 || !r.Bites() {
		t.Errorf("%+v", r)
	}
	if quiet := newTale().check(); quiet.Bites() {
		t.Error("a storm without updates bites")
	}
}

// TestInterrupted: a history without an end says so, and no law of the end is checked.
func TestInterrupted(t *testing.T) {
	for name, interrupt := range map[string]func(*tale){
		"before the last fault": func(s *tale) { s.calm = 0 },
		"after it":              func(s *tale) { s.cut = true },
		"never":                 func(*tale) {},
	} {
		story := newTale()
		interrupt(story)
		story.lock(1, 10) // never returns
		story.lock(2, 10).granted(20, "a", 1, 90).unlock(30, 31, "")
		r := story.check()
		if whole := name == "never"; r.Interrupted == whole || (len(r.Violations) != 0) != whole {
			t.Errorf("interrupted %s: interrupted %v, %v", name, r.Interrupted, r.Violations)
		}
	}
}

// TestLongHistory: a history of a long storm is checked in seconds, all of it, and the one
// violation in the middle is found.
func TestLongHistory(t *testing.T) {
	for _, broken := range []bool{false, true} {
		story := newTale()
		story.calm = 0
		at := 0.0
		const n = 20_000
		for i := range n {
			held := 5.0
			story.lock(1+i%7, at-float64(i%3)).granted(at+1, fmt.Sprint("o", i), uint64(i)+1, at+90).unlock(at+held, at+held+0.5, "")
			at += held + 0.2
			if broken && i == n/2 {
				at -= 3
			}
			if i%100 == 99 {
				at += 10 // nothing is under way
			}
		}
		from := time.Now()
		r := story.check()
		want := []Law(nil)
		if broken {
			want = []Law{Exclusion, Linearizable}
		}
		if got := r.laws(); !slices.Equal(got, want) {
			t.Errorf("broken %v: reported %v", broken, got)
		}
		if r.Unsearched > 0 {
			t.Errorf("%d calls are not checked", r.Unsearched)
		}
		t.Logf("%d calls in %s", n, time.Since(from))
	}
}
