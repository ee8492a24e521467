package kit

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

type waiters = Waiters[*OwnRequest, int]

func newWaiters(every time.Duration) (*waiters, *sync.Mutex) {
	var mu sync.Mutex
	ws := NewWaiters[*OwnRequest, int](&mu, every)
	return &ws, &mu
}

// woken reports whether the waiter was woken since the last call.
func woken(w *Waiter[*OwnRequest]) bool {
	select {
	case <-w.wake:
		return true
	default:
		return false
	}
}

func request(name string) *OwnRequest {
	id := driver.NewID()
	return &OwnRequest{Request: driver.Request{Name: name, ID: id, Owner: id, TTL: time.Minute}}
}

func TestWaitersAreGroupedByNameInOrder(t *testing.T) {
	ws, _ := newWaiters(0)
	a, g, first := ws.Add(request("x"))
	if !first || g.First() != a || ws.Group("x") != g || ws.Len() != 1 {
		t.Error("the first of a name has no group of its own")
	}
	g.State = 7
	b, same, first := ws.Add(request("x"))
	if first || same.State != 7 || len(same.All()) != 2 {
		t.Error("the second of a name is not in the group of the first")
	}
	ws.Add(request("y"))
	ws.Remove(a)
	if g.First() != b {
		t.Error("the second does not come first after the first has gone")
	}
	ws.Remove(b)
	if ws.Group("x") != nil || ws.Len() != 1 {
		t.Error("a group is left without waiters")
	}
}

func TestWhoIsWoken(t *testing.T) {
	ws, _ := newWaiters(0)
	r := request("x")
	a, g, _ := ws.Add(r)
	copied, _, _ := ws.Add(r) // the same request, acquired twice
	b, _, _ := ws.Add(request("x"))
	c, _, _ := ws.Add(request("y"))
	for what, tt := range map[string]struct {
		wake func()
		want [4]bool
	}{
		"of the request": {func() { ws.Notify(r) }, [4]bool{true, true}},
		"of the name":    {func() { ws.WakeName("x") }, [4]bool{true, true, true}},
		"of the group":   {g.WakeAll, [4]bool{true, true, true}},
		"the first":      {ws.WakeFirst, [4]bool{true, false, false, true}},
		"all":            {ws.WakeAll, [4]bool{true, true, true, true}},
		"of no name":     {func() { ws.WakeName("z"); ws.Notify(request("z")) }, [4]bool{}},
	} {
		tt.wake()
		tt.wake() // twice is once
		if got := [4]bool{woken(a), woken(copied), woken(b), woken(c)}; got != tt.want {
			t.Errorf("%s: woken are %v, want %v", what, got, tt.want)
		}
	}
	if late, _, _ := ws.Add(r); !woken(late) {
		t.Error("a waiter that is added after the news of its request is not woken")
	}
}

func TestTheFirstIsWokenByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ws, mu := newWaiters(0)
		mu.Lock()
		a, g, _ := ws.Add(request("x"))
		b, _, _ := ws.Add(request("x"))
		g.WakeAfter(time.Hour)
		g.WakeAfter(time.Second)
		mu.Unlock()
		time.Sleep(time.Second - 1)
		if woken(a) {
			t.Error("woken too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !woken(a) || woken(b) {
			t.Error("others than the first were woken")
		}
		time.Sleep(2 * time.Hour)
		if woken(a) {
			t.Error("woken again")
		}
		mu.Lock()
		g.WakeAfter(time.Second)
		ws.Remove(a)
		ws.Remove(b)
		mu.Unlock()
		time.Sleep(time.Hour)
	})
}

func TestTheFirstIsWokenAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ws, mu := newWaiters(time.Second)
		mu.Lock()
		a, _, _ := ws.Add(request("x"))
		mu.Unlock()
		for range 10 {
			last := time.Now()
			time.Sleep(800*time.Millisecond - 1)
			if woken(a) {
				t.Error("woken before four fifths of the time")
			}
			if err := a.Sleep(t.Context(), nil, 200*time.Millisecond+2); err != nil {
				t.Error(err)
			}
			if n := time.Since(last); n <= 800*time.Millisecond || n > time.Second {
				t.Errorf("woken after %s", n)
			}
		}
		mu.Lock()
		ws.Remove(a)
		mu.Unlock()
	})
}

// TestManyNames: the number of wakes a second is bounded, and a name whose holder expires is woken
// at that time all the same.
func TestManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const names, seconds = 5000, 20
		ws, mu := newWaiters(time.Second)
		var all []*Waiter[*OwnRequest]
		mu.Lock()
		for i := range names {
			w, _, _ := ws.Add(request(strconv.Itoa(i)))
			all = append(all, w)
		}
		mu.Unlock()
		wakes, most := 0, 0
		for range seconds {
			time.Sleep(time.Second)
			synctest.Wait()
			n := 0
			for _, w := range all {
				if woken(w) {
					n++
				}
			}
			wakes, most = wakes+n, max(most, n)
		}
		// they come sooner by up to a fifth, and so at first in the last fifth of the interval; the
		// first intervals were chosen while there were fewer names
		if wakes < wakesMax*seconds/2 || wakes > 2*wakesMax*seconds {
			t.Errorf("%d wakes in %d s for %d names, %d of them in one", wakes, seconds, names, most)
		}
		w := all[7]
		for _, d := range []time.Duration{10 * time.Millisecond, time.Hour} {
			mu.Lock()
			ws.Group("7").WakeWithin(d)
			mu.Unlock()
			woken(w)
			began := time.Now()
			if err := w.Sleep(t.Context(), nil, time.Hour); err != nil || time.Since(began) > min(d, names*time.Second/wakesMax) {
				t.Errorf("woken after %s, want %s at most: %v", time.Since(began), d, err)
			}
		}
		mu.Lock()
		for _, w := range all {
			ws.Remove(w)
		}
		mu.Unlock()
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ws, _ := newWaiters(0)
		w, _, _ := ws.Add(request("x"))
		w.Wake()
		began := time.Now()
		if err := w.Sleep(t.Context(), nil, time.Hour); err != nil || time.Since(began) != 0 {
			t.Errorf("woken before: %v after %s", err, time.Since(began))
		}
		if err := w.Sleep(t.Context(), nil, time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("not woken: %v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Sleep(ctx, nil, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of the context: %v", err)
		}
		closed := make(chan struct{})
		close(closed)
		if err := w.Sleep(t.Context(), closed, 0); err != driver.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}
