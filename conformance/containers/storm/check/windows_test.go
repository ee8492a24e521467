package check

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

// failover is a promotion between two times, and what the old master granted is trusted until 100
// ms after the second. 0: the old master never becomes a replica.
func (t *tale) failover(from, to float64) {
	t.ops++
	t.add(from, history.Event{Kind: history.Promoted, Proc: -1, Op: t.ops})
	if to != 0 {
		t.add(to, history.Event{Kind: history.Demoted, Proc: -1, Op: t.ops})
	}
}

// stepped is a step of a clock between two times.
func (t *tale) stepped(from, to float64) {
	t.add(to, history.Event{Kind: history.Stepped, Proc: -1, From: int64(from*1e6) + ms})
}

// twice grants x twice at a time.
func (t *tale) twice(at float64, token uint64) {
	t.lock(1, at-2).granted(at-1, fmt.Sprint("a", token), token, at+90).unlock(at+5, at+6, "")
	t.lock(2, at-1).granted(at, fmt.Sprint("b", token), token+1, at+90).unlock(at+8, at+9, "")
}

// overtaken has a waiter that is overtaken at a time.
func (t *tale) overtaken(at float64, token uint64) {
	t.lock(1, at-12).granted(at-11, "h", token, at+80).unlock(at-2, at-1, "")
	w := t.lock(2, at-10)
	t.seen(at-9, "w", int(at)-10)
	t.lock(3, at-8).granted(at, "o", token+1, at+90).unlock(at+1, at+2, "")
	t.seen(at+8, "w", int(at)-10)
	w.granted(at+18, "w", token+2, at+100).unlock(at+19, at+20, "")
}

// episode is a history, and what the checker makes of it.
type episode struct {
	write          func(*tale)
	want, excluded []Law
}

// judge has the checker judge episodes.
func judge(t *testing.T, episodes map[string]episode) {
	for name, c := range episodes {
		t.Run(name, func(t *testing.T) {
			story := newTale()
			c.write(story)
			r := story.check()
			if got := r.laws(); !slices.Equal(got, c.want) {
				t.Errorf("reported %v, want %v:\n%v", got, c.want, r.Violations)
			}
			if got := (&Report{Violations: r.Excluded}).laws(); !slices.Equal(got, c.excluded) {
				t.Errorf("excluded %v, want %v:\n%v", got, c.excluded, r.Excluded)
			}
		})
	}
}

// TestFailovers: what a failover of Redis may cause is excluded in its window and reported apart,
// and all else is a violation. Without failovers that lose grants there are no windows.
func TestFailovers(t *testing.T) {
	both := []Law{Exclusion, Linearizable}
	judge(t, map[string]episode{
		"two holders in the window": {func(t *tale) {
			t.failover(40, 60)
			t.twice(50, 1)
		}, nil, both},
		"two holders while what the old master granted is trusted": {func(t *tale) {
			t.failover(20, 40)
			t.twice(130, 1)
		}, nil, both},
		"two holders that are trusted together for longer than the window": {func(t *tale) {
			t.failover(20, 40)
			t.lock(1, 48).granted(49, "a", 1, 190).unlock(180, 181, "")
			t.lock(2, 49).granted(50, "b", 2, 190).unlock(181, 182, "")
		}, []Law{Exclusion}, []Law{Linearizable}},
		"too many permits for longer than the window": {func(t *tale) {
			t.failover(20, 40)
			for i := range 3 {
				at := float64(48 + i)
				t.lock(1+i, at, permit).granted(at+1, fmt.Sprint("p", i), uint64(i)+1, 190).unlock(180, 181, "")
			}
		}, []Law{Exclusion}, []Law{Linearizable}},
		"too many permits in the window": {func(t *tale) {
			t.failover(20, 40)
			for i := range 3 {
				at := float64(48 + i)
				t.lock(1+i, at, permit).granted(at+1, fmt.Sprint("p", i), uint64(i)+1, 190).unlock(60, 61, "")
			}
		}, nil, []Law{Exclusion, Linearizable}},
		"two holders before the promotion": {func(t *tale) {
			t.failover(70, 80)
			t.twice(50, 1)
		}, both, nil},
		"two holders after the window": {func(t *tale) {
			t.failover(20, 40)
			t.twice(150, 1)
		}, both, nil},
		"two holders in the window, and two after it": {func(t *tale) {
			t.failover(20, 40)
			t.twice(50, 1)
			t.twice(150, 4)
		}, both, both},
		"the same in one part, in which something is always held": {func(t *tale) {
			for i := range 25 {
				at := float64(i * 10)
				t.lock(5+i%2, at, shared).granted(at+1, fmt.Sprint("r", i), uint64(at)+1, at+90).unlock(at+12, at+13, "")
			}
			t.failover(20, 40)
			t.lock(1, 99).granted(100, "w1", 96, 190).unlock(102, 103, "")
			t.lock(1, 199).granted(200, "w2", 196, 290).unlock(202, 203, "")
		}, both, both},
		"two holders of a master that never becomes a replica": {func(t *tale) {
			t.failover(20, 0)
			t.twice(450, 1)
		}, nil, both},
		"two holders where no failover loses a grant": {func(t *tale) {
			t.storm.Safe = true
			t.failover(40, 60)
			t.twice(50, 1)
		}, both, nil},
		"a waiter that is overtaken in the window": {func(t *tale) {
			t.failover(40, 60)
			t.overtaken(50, 1)
		}, nil, []Law{Order}},
		"a waiter that is overtaken after the window": {func(t *tale) {
			t.failover(40, 60)
			t.overtaken(200, 1)
		}, []Law{Order}, nil},
		"a hold that the old master granted, and then the new one": {func(t *tale) {
			t.failover(0, 60)
			t.lock(1, 1).granted(2, "a", 6, 90).unlock(3, 4, "")
			t.lock(2, 5, joins("a")).granted(6, "a", 7, 95).unlock(8, 9, "")
		}, nil, []Law{Linearizable, Tokens}},
		"a hold with two tokens, of which the later is smaller": {func(t *tale) {
			t.failover(0, 60)
			t.lock(1, 1).granted(2, "a", 7, 90).unlock(3, 4, "")
			t.lock(2, 5, joins("a")).granted(6, "a", 6, 95).unlock(8, 9, "")
		}, []Law{Tokens}, []Law{Linearizable}},
		"a hold with two tokens outside of windows": {func(t *tale) {
			t.failover(200, 260)
			t.lock(1, 1).granted(2, "a", 6, 90).unlock(3, 4, "")
			t.lock(2, 5, joins("a")).granted(6, "a", 7, 95).unlock(8, 9, "")
		}, []Law{Linearizable, Tokens}, nil},
		"a token that falls in the window": {func(t *tale) {
			t.failover(0, 60)
			t.lock(1, 1).granted(2, "a", 7, 90).unlock(3, 4, "")
			t.lock(2, 5).granted(6, "b", 6, 95).unlock(8, 9, "")
		}, []Law{Tokens}, []Law{Linearizable}},
		"a loss that is not reported in the window": {func(t *tale) {
			t.failover(0, 60)
			t.lock(1, 1).granted(2, "a", 1, 20).look(25, 20, "").unlock(26, 27, history.Loss)
		}, []Law{Loss}, nil},
		"an update that the fenced register loses in the window": {func(t *tale) {
			t.failover(0, 60)
			for i, n := range []int64{1, 2, 2} {
				t.add(float64(10+i), history.Event{Kind: history.Write, Proc: -1, Name: "x", Text: Fenced, Token: uint64(i) + 1, Count: n})
			}
		}, []Law{Fencing}, nil},
		"a waiter that is forgotten in the window": {func(t *tale) {
			t.failover(0, 60)
			t.lock(2, 1)
		}, []Law{Progress}, nil},
		"a request that a promoted replica still has": {func(t *tale) {
			t.failover(20, 40)
			t.lock(2, 150, try).refused(151, history.Held)
		}, nil, nil},
		"a refusal of a lock that is free, before the promotion": {func(t *tale) {
			t.lock(2, 5, try).refused(6, history.Held)
			t.failover(20, 40)
		}, []Law{Linearizable}, nil},
	})
}

// TestStepsOfAClock: the same for what a server's clock that is set ahead may cause.
func TestStepsOfAClock(t *testing.T) {
	judge(t, map[string]episode{
		"two holders at the step": {func(t *tale) {
			t.stepped(48, 52)
			t.twice(50, 1)
		}, nil, []Law{Exclusion, Linearizable}},
		"two holders within a TTL of it": {func(t *tale) {
			t.stepped(20, 21)
			t.twice(110, 1)
		}, nil, []Law{Exclusion, Linearizable}},
		"two holders before it": {func(t *tale) {
			t.twice(10, 1)
			t.stepped(148, 152)
		}, []Law{Exclusion, Linearizable}, nil},
		"two holders that are trusted together for longer": {func(t *tale) {
			t.stepped(20, 21)
			t.lock(1, 48).granted(49, "a", 1, 190).unlock(180, 181, "")
			t.lock(2, 49).granted(50, "b", 2, 190).unlock(181, 182, "")
		}, []Law{Exclusion}, []Law{Linearizable}},
		"one who is overtaken": {func(t *tale) {
			t.stepped(48, 52)
			t.overtaken(50, 1)
		}, nil, []Law{Order}},
		"a token that falls": {func(t *tale) {
			t.stepped(15, 16)
			t.lock(1, 10).granted(11, "a", 2, 100).unlock(12, 13, "")
			t.lock(2, 20).granted(21, "b", 1, 110).unlock(22, 23, "")
		}, []Law{Tokens}, []Law{Linearizable}},
		"two tokens of one hold": {func(t *tale) {
			t.stepped(15, 16)
			t.lock(1, 10).granted(11, "a", 1, 100).unlock(30, 31, "")
			t.lock(1, 20).granted(21, "a", 2, 110).unlock(28, 29, "")
		}, []Law{Tokens}, nil},
	})
}

// TestWithin: windows that overlap count once, and what follows the storm does not.
func TestWithin(t *testing.T) {
	story := newTale()
	story.calm = 1000
	story.failover(100, 200) // to 300
	story.failover(150, 300) // to 400
	story.failover(900, 0)
	story.add(2000, history.Event{Kind: history.Closed})
	if r := story.check(); len(r.Windows) != 3 || r.Within < 0.399 || r.Within > 0.401 {
		t.Errorf("%d windows with %.3f of the time, want 3 with 0.4", len(r.Windows), r.Within)
	}
}
