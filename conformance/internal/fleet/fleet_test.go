package fleet

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// site is a space in memory. Its tokens are greater by ahead.
func site(name string, ahead driver.Token) Site {
	space := new(memory.Space)
	return Site{Name: name, Open: func(t conformance.T) driver.Backend { return &skewed{backend(t, space), ahead} }}
}

// skewed is a backend whose tokens are greater by ahead, as those of another clock.
type skewed struct {
	*memory.Backend
	ahead driver.Token
}

func (b *skewed) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	g.Token += b.ahead
	return g, err
}

func (b *skewed) Raise(ctx context.Context, r driver.Request, t driver.Token) error {
	return b.Backend.Raise(ctx, r, t-b.ahead)
}

// TestPhases: a fleet moves to another backend and back, with workers that are killed in each
// overlap, and no two are in at the same time. Tokens grow all the way, whichever backend has the
// greater ones.
func TestPhases(t *testing.T) {
	for i := range 10 {
		synctest.Test(t, func(t *testing.T) {
			ahead := driver.Token(1_000_000 * (i % 2))
			f := Phases(t, site("one", ahead), site("two", 1_000_000-ahead), 2*time.Second, 20, true)
			if n := f.Record.Shrunk(); n > 0 {
				t.Errorf("%d tokens were not greater than the one before", n)
			}
		})
	}
}

// TestFaults: whatever calls and replies of whichever side are lost, no two are in, the fleet goes
// on after the faults, and in the end nothing is left on either side.
func TestFaults(t *testing.T) {
	for _, mixed := range []Phase{OnlyOld, OnlyNew} {
		for range 4 {
			synctest.Test(t, func(t *testing.T) { faults(t, mixed) })
		}
	}
}

func faults(t *testing.T, mixed Phase) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, beside workers of phase %s", seed, mixed)
		}
	}()
	one, two := new(memory.Space), new(memory.Space)
	open := func(s *memory.Space) Site {
		return Site{Name: "memory", Open: func(t conformance.T) driver.Backend { return backend(t, s) }}
	}
	f := New(t, open(one), open(two), 2*time.Second)
	ws := []*Worker{f.Start(Both), f.Start(Both), f.Start(Both), f.Start(mixed)}
	for range 12 {
		var heal []func()
		for range 1 + r.IntN(3) {
			w := ws[r.IntN(len(ws))]
			switch s := w.sides[r.IntN(len(w.sides))]; r.IntN(3) {
			case 0:
				heal = append(heal, s.Partition())
			case 1:
				heal = append(heal, s.HoldReplies())
			case 2:
				s.DropReply()
			}
		}
		time.Sleep(time.Duration(r.Int64N(int64(5 * time.Second))))
		for _, h := range heal {
			h()
		}
		f.Runs(5)
	}
	for _, w := range ws {
		w.Stop()
	}
	for _, err := range f.Record.Violations() {
		t.Error(err)
	}
	time.Sleep(3 * time.Second)
	for _, s := range []*memory.Space{one, two} {
		b := backend(t, s)
		if q, err := b.Inspect(t.Context(), f.name); err != nil || q.Len() > 0 {
			t.Errorf("%d requests are left, %v", q.Len(), err)
		}
		b.Close()
	}
}

// TestPhasesThatMayNotMix: workers of the first phase beside workers of the third are two holders,
// and the recorder sees that.
func TestPhasesThatMayNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(t, site("one", 0), site("two", 0), 2*time.Second)
		f.Start(OnlyOld)
		f.Start(OnlyNew)
		f.Runs(1000)
		if len(f.Record.Violations()) == 0 {
			t.Error("the recorder saw no two holders")
		}
	})
}

func backend(t conformance.T, space *memory.Space) *memory.Backend {
	b, err := memory.New(memory.Options{Space: space})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return b
}
