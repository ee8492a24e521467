package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
)

// newShop returns a shop with a fresh stock, and its events.
func newShop(t *testing.T, stock int, l lock) (*shop, *strings.Builder) {
	t.Helper()
	var events strings.Builder
	s := &shop{config: config{Dir: t.TempDir(), Shop: 1}, lock: l, out: json.NewEncoder(&events)}
	if err := s.stock().write(stock); err != nil {
		t.Fatal(err)
	}
	return s, &events
}

func wantState(t *testing.T, s *shop, sales, left int) {
	t.Helper()
	es, err := s.ledger().read()
	if err != nil {
		t.Fatal(err)
	}
	n, err := s.stock().read()
	if err != nil {
		t.Fatal(err)
	}
	if len(es) != sales || n != left {
		t.Errorf("%d sales, %d left; want %d and %d", len(es), n, sales, left)
	}
}

// lostLease is lost while its holder thinks.
type lostLease struct{ noLease }

func (lostLease) Err() error                   { return fmt.Errorf("lease: %w", dlock.ErrLost) }
func (lostLease) Unlock(context.Context) error { return dlock.ErrLost }

func TestALostLeaseSellsNothingAndTheBuyerQueuesAgain(t *testing.T) {
	calls := 0
	s, events := newShop(t, 3, func(context.Context) (lease, error) {
		if calls++; calls < 3 {
			return lostLease{}, nil
		}
		return noLease{}, nil
	})
	if err := s.sale(t.Context(), lostLease{}, 0); !errors.Is(err, dlock.ErrLost) {
		t.Error(err)
	}
	wantState(t, s, 0, 3)
	if err := s.buy(t.Context()); err != nil {
		t.Error(err)
	}
	wantState(t, s, 1, 2)
	if n := strings.Count(events.String(), `"note"`); calls != 3 || n != 2 {
		t.Errorf("%d calls, %d notes", calls, n)
	}
}

func TestABuyerTriesAgainWhenTheBackendDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s, _ := newShop(t, 1, func(context.Context) (lease, error) {
			if calls++; calls < 10 {
				return nil, errors.New("connection refused")
			}
			return noLease{}, nil
		})
		if err := s.buy(t.Context()); err != nil {
			t.Error(err)
		}
		wantState(t, s, 1, 0)
	})
}

func TestABuyerStopsTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("connection refused")
		s, _ := newShop(t, 1, func(context.Context) (lease, error) { return nil, gone })
		begin := time.Now()
		if err := s.buy(t.Context()); !errors.Is(err, gone) {
			t.Error(err)
		}
		if d := time.Since(begin); d < patience || d > patience+time.Second {
			t.Error("stopped after", d)
		}
	})
}

func TestABuyerDoesNotRepeatWhatCannotSucceed(t *testing.T) {
	for _, e := range []error{dlock.ErrInvalid, dlock.ErrUnsupported, dlock.ErrConflict, dlock.ErrClosed} {
		calls := 0
		s, _ := newShop(t, 1, func(context.Context) (lease, error) { calls++; return nil, fmt.Errorf("lock: %w", e) })
		if err := s.buy(t.Context()); !errors.Is(err, e) || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	}
}

func TestOnlyTheFirstToGetThereIsKilled(t *testing.T) {
	s, events := newShop(t, 2, unguarded)
	s.KillAt = 2
	synctest.Test(t, func(t *testing.T) { // the context lasts until it has asked
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := s.buy(ctx); !errors.Is(err, context.DeadlineExceeded) { // it thought until then
			t.Error(err)
		}
	})
	wantState(t, s, 0, 2)
	if err := s.buy(t.Context()); err != nil {
		t.Error(err)
	}
	wantState(t, s, 1, 1)
	if n := strings.Count(events.String(), `"kill me"`); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestSoldOut(t *testing.T) {
	s, _ := newShop(t, 0, unguarded)
	if err := s.buy(t.Context()); err != nil {
		t.Error(err)
	}
	wantState(t, s, 0, 0)
}

// TestBuyersComeInTurns: by their plan, buyers of all shops come one after the other.
func TestBuyersComeInTurns(t *testing.T) {
	o := Options{Shops: 4, Buyers: 300, Stock: 50, Think: 5 * time.Millisecond}
	type arrival struct {
		at   time.Duration
		shop int
	}
	var all []arrival
	for n := range o.Shops {
		s := &shop{config: config{Shop: n + 1, Shops: o.Shops, Pause: o.pause()}}
		for i := range o.shopBuyers(n) {
			all = append(all, arrival{s.arrival(i), n})
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	for i, a := range all {
		if a.shop != i%o.Shops {
			t.Fatalf("buyer %d, at %s, is of shop %d", i, a.at, a.shop+1)
		}
	}
	if last := all[len(all)-1].at; last > allHere || last < 300*time.Millisecond {
		t.Errorf("the last one comes at %s", last)
	}
	o.Buyers = 100_000
	if p := o.pause(); p <= 0 || p*25_000 > allHere {
		t.Errorf("with many buyers: %s", p)
	}
}
