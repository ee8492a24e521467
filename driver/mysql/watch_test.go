package mysql

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestWatch: a client that holds anything asks twice a second which of its holds were ended by
// force, with one statement for all holds, and reports each once. A client that holds nothing does
// not ask, nor does one without a function for Notify.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var ended driver.ID
		failing := false
		f := free{}
		s := &scripted{answer: func(stmt string) (answer, error) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case is(stmt, endings) && failing:
				return answer{}, serverError(1053, "08S01")
			case is(stmt, endings):
				return reads(ended.String()), nil
			}
			return f.answer(stmt)
		}}
		b := s.client(t, Options{})
		acquire := func(ttl time.Duration) driver.Request {
			r := exclusive(driver.NewID().String())
			r.Client, r.TTL = driver.ID{1}, ttl
			if _, err := b.Acquire(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			return r
		}
		release := func(rs ...driver.Request) {
			for _, r := range rs {
				if err := b.Release(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		}
		asked := func(what string, d time.Duration, want int) {
			t.Helper()
			before := s.count("AND broken AND")
			time.Sleep(d)
			if n := s.count("AND broken AND") - before; n < want-1 || n > want+1 {
				t.Errorf("%s: asked %d times in %s; want %d", what, n, d, want)
			}
		}
		first := acquire(time.Hour)
		asked("without Notify", time.Minute, 0)
		release(first)

		var lost []driver.ID
		b.Notify(func(id driver.ID) {
			mu.Lock() // a driver that called under its lock would deadlock
			defer mu.Unlock()
			lost = append(lost, id)
		})
		reported := func() []driver.ID {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(lost)
		}
		asked("nothing is held", time.Minute, 0)
		var held []driver.Request
		for range 100 {
			held = append(held, acquire(time.Hour))
		}
		asked("a hundred are held", time.Minute, 120)
		mu.Lock()
		ended = held[42].ID
		mu.Unlock()
		time.Sleep(endPoll + time.Millisecond)
		if got := reported(); !slices.Equal(got, []driver.ID{held[42].ID}) {
			t.Fatalf("lost are %v; want %v", got, held[42].ID)
		}
		asked("one was ended", time.Minute, 120)
		if len(reported()) != 1 {
			t.Errorf("it was reported %d times", len(reported()))
		}
		mu.Lock()
		ended, failing = held[43].ID, true
		mu.Unlock()
		time.Sleep(5 * time.Second)
		mu.Lock()
		failing = false
		mu.Unlock()
		time.Sleep(endPoll + time.Millisecond)
		if !slices.Contains(reported(), held[43].ID) {
			t.Error("what was ended while the server did not answer is not reported")
		}
		release(held...)
		asked("all was released", time.Minute, 0)
		_ = acquire(10 * time.Second)
		asked("what is held is not renewed", time.Minute, 20)
	})
}
