package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// local is a contender within this process: a lock that is passed on in the order of arrival.
func local(name string) contender {
	var mu sync.Mutex
	locks := map[string]chan struct{}{}
	return contender{name: name, renews: true, open: func(context.Context, string) (client, error) {
		return localClient(func(name string) chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			if locks[name] == nil {
				locks[name] = make(chan struct{}, 1)
			}
			return locks[name]
		}), nil
	}}
}

type localClient func(name string) chan struct{}

func (c localClient) locker(_ context.Context, name string) (locker, error) {
	return localLocker(c(name)), nil
}

func (c localClient) close() {}

type localLocker chan struct{}

func (l localLocker) lock(ctx context.Context) error {
	time.Sleep(time.Millisecond) // so that virtual time passes
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l localLocker) unlock() error { <-l; return nil }

func (l localLocker) close() {}

// idleMachine is a stand on a machine that runs nothing else.
func idleMachine(contenders ...contender) *stand {
	return &stand{
		backend: backend{name: "local", local: true, contenders: contenders},
		watch:   func() func() float64 { return func() float64 { return 0 } },
	}
}

func TestPairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := contest(t.Context(), settings{rounds: 3, factor: 1}, pairs, idleMachine(local("dlock"), local("peer")), 16)
		if len(rows) != 2 || len(rows[0].Rounds) != 3 || len(rows[1].Rounds) != 3 {
			t.Fatalf("%+v", rows)
		}
		for _, r := range rows {
			for _, round := range r.Rounds { // 16 goroutines, each of which takes 1 ms
				if v := round.Values; v["rate"] != 16_000 || v["p50"] != 1 || v["p99"] != 1 {
					t.Errorf("%s: %v", r.Contender, v)
				}
			}
		}
		if r, ok := against(pairs, rows, false); !ok || r.Refused != "" || r.Value != 1 || r.Of != "peer" {
			t.Errorf("%+v, %t", r, ok)
		}
	})
}

// barging is a contender whose waiters poll each millisecond: a client that asks again right after
// its release always gets the lock.
func barging() contender {
	var held atomic.Bool
	return contender{name: "dlock", open: func(context.Context, string) (client, error) { return bargingClient{&held}, nil }}
}

type bargingClient struct{ held *atomic.Bool }

func (c bargingClient) locker(context.Context, string) (locker, error) { return bargingLocker(c), nil }

func (c bargingClient) close() {}

type bargingLocker struct{ held *atomic.Bool }

func (l bargingLocker) lock(ctx context.Context) error {
	for !l.held.CompareAndSwap(false, true) {
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (l bargingLocker) unlock() error { l.held.Store(false); return nil }

func (l bargingLocker) close() {}

// TestHandOffsAreStrict: even a barging contender never has the lock twice in a row, and a hand-off
// is timed from the call of Unlock.
func TestHandOffsAreStrict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := contest(t.Context(), settings{rounds: 2, factor: 1}, handOffs, idleMachine(barging()), 2)
		for _, round := range rows[0].Rounds {
			// each holds for 1 ms, and the next one polls within 1 ms
			if v := round.Values; v["rate"] < 490 || v["rate"] > 1000 || v["p99"] > 1 {
				t.Errorf("%v", v)
			}
			if d := round.Turns[0] - round.Turns[1]; d < -1 || d > 1 {
				t.Errorf("turns %v", round.Turns)
			}
		}
	})
}

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := contest(t.Context(), settings{rounds: 1, factor: 1}, waits, idleMachine(local("dlock")), 100)
		if v := rows[0].Rounds[0].Values; v["p50"] != 0 || v["most"] != 0 {
			t.Errorf("%v", v)
		}
	})
}

// TestCounted: a scenario that counts, and times nothing, is run once, by all contenders at once.
func TestCounted(t *testing.T) {
	for _, sc := range []scenario{leases, waiters} {
		rows := contest(t.Context(), settings{rounds: 3, factor: 1}, sc, idleMachine(local("dlock"), local("peer")), 50)
		for _, r := range rows {
			if len(r.Rounds) != 1 || r.Rounds[0].Values["n"] != 50 || r.Trouble != "" {
				t.Errorf("%s: %+v", sc.name, r)
			}
		}
		if len(rows) != 2 {
			t.Errorf("%s: %d rows", sc.name, len(rows))
		}
	}
}

// TestBusyRoundsAreRepeated: at most as often as there are rounds; a repeated round that is busy
// too is marked.
func TestBusyRoundsAreRepeated(t *testing.T) {
	for _, c := range []struct {
		busy int // of the first rounds
		want []float64
	}{{0, []float64{0, 0, 0}}, {3, []float64{0, 0, 0}}, {5, []float64{0.9, 0.9, 0}}} {
		synctest.Test(t, func(t *testing.T) {
			s, n := idleMachine(local("dlock")), -1 // the first warms up
			s.watch = func() func() float64 {
				return func() float64 {
					if n++; n > 0 && n <= c.busy {
						return 0.9
					}
					return 0
				}
			}
			rows := contest(t.Context(), settings{rounds: 3, factor: 1}, pairs, s, 1)
			var got []float64
			for _, r := range rows[0].Rounds {
				got = append(got, r.Others)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("after %d busy rounds others had %v, want %v", c.busy, got, c.want)
			}
		})
	}
}

// TestTrouble: a contender that cannot take part, or fails, is named, and the others go on.
func TestTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		absent := contender{name: "absent", open: func(context.Context, string) (client, error) { return nil, errors.New("no such server") }}
		rows := contest(t.Context(), settings{rounds: 3, factor: 1}, pairs, idleMachine(absent, local("dlock")), 1)
		if rows[0].Trouble != "no such server" || len(rows[0].Rounds) != 0 || len(rows[1].Rounds) != 3 {
			t.Errorf("%+v", rows)
		}
		var text strings.Builder
		printCase(&text, pairs, rows)
		if !strings.Contains(text.String(), "absent: trouble: no such server") {
			t.Error(text.String())
		}
	})
}

func TestChoose(t *testing.T) {
	var c choice
	if err := c.choose("redis,file", "pairs", "16", "dlock,flock"); err != nil {
		t.Fatal(err)
	}
	if len(c.backends) != 2 || len(c.scenarios) != 1 || !slices.Equal(c.scenarios[0].cases, []int{16}) || len(c.backends[1].contenders) != 2 || len(c.backends[0].contenders) != 1 {
		t.Errorf("%+v", c)
	}
	for _, bad := range [][4]string{{"oracle"}, {"", "sleep"}, {"", "", "many"}, {"redis,oracle"}, {"", "", "", "nosuch"}, {"", "", "17"}} {
		if err := new(choice).choose(bad[0], bad[1], bad[2], bad[3]); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestFile measures on a real backend, the one that needs no server.
func TestFile(t *testing.T) {
	var c choice
	if err := c.choose("file", "pairs,handoffs,waits", "2,16,100", ""); err != nil {
		t.Fatal(err)
	}
	// A short round of a busy machine may see nothing happen. A long one may not.
	for _, factor := range []float64{0.2, 2, 20} {
		c.settings = settings{rounds: 1, factor: factor}
		r, err := c.measure(t.Context(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Rows) != 8 {
			t.Errorf("%d rows", len(r.Rows))
		}
		var idle []Row
		for _, row := range r.Rows {
			switch {
			case row.Trouble != "" || len(row.Rounds) != 1:
				t.Fatalf("%+v", row)
			case row.Rounds[0].Values[scenarioOf(row.Scenario).metrics[0].key] <= 0:
				idle = append(idle, row)
			}
		}
		if len(idle) == 0 {
			return
		}
		t.Logf("rounds of %v times the length: %+v", factor, idle)
	}
	t.Error("a contender does nothing, however long the round")
}

// TestBeside: a contender whose own process does not start cannot take part, and the others go on.
func TestBeside(t *testing.T) {
	b := backend{name: "local", local: true,
		start: func(service.T) (string, *service.Server) { return "", nil },
		contenders: []contender{local("dlock"), {name: "absent", beside: func(t service.T) (*service.Server, opener) {
			t.Fatalf("there is no Java")
			return nil, nil
		}}}}
	err := b.on(t.Context(), func(ctx context.Context, s *stand) {
		s.watch = func() func() float64 { return func() float64 { return 0 } }
		rows := contest(ctx, settings{rounds: 1, factor: 0.1}, pairs, s, 1)
		if len(rows[0].Rounds) != 1 || rows[1].Trouble != "there is no Java" {
			t.Errorf("%+v", rows)
		}
	})
	if err != nil {
		t.Error(err)
	}
	if b.contenders[1].open != nil {
		t.Error("the list of all contenders was changed")
	}
	b.start = func(t service.T) (string, *service.Server) { t.Fatalf("no server"); return "", nil }
	if err := b.on(t.Context(), func(context.Context, *stand) { t.Error("it goes on") }); err == nil || err.Error() != "no server" {
		t.Errorf("%v", err)
	}
}
