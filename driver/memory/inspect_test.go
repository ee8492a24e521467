package memory

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestBreakLetsTheHoldRunOut(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		g := must(t, a, r)
		j := join(r)
		must(t, a, j)
		w := start(t.Context(), b, ask("lock"))
		wants(t, b.Break(t.Context(), "lock", g.Token+1, false), driver.ErrNotHeld)
		wants(t, b.Break(t.Context(), "lock", 0, true), driver.ErrNotHeld)
		wants(t, b.Break(t.Context(), "other", g.Token, true), driver.ErrNotHeld)
		wants(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, nil)

		time.Sleep(ttl / 2)
		wants(t, b.Break(t.Context(), "lock", g.Token, false), nil)
		for _, p := range a.Renew(t.Context(), []driver.Request{r, j}) {
			wants(t, p.Err, driver.ErrLost)
		}
		for _, again := range []driver.Request{r, j, join(r)} {
			_, err := a.Acquire(t.Context(), again)
			wants(t, err, driver.ErrLost)
		}
		time.Sleep(ttl/2 - 1)
		waits(t, w)
		time.Sleep(time.Nanosecond)
		wants(t, returns(t, w).err, nil)
		// the successor is safe
		wants(t, b.Break(t.Context(), "lock", g.Token, true), driver.ErrNotHeld)
	})
}

func TestForcedBreakEndsTheHoldNow(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		g := must(t, a, r)
		j := join(r)
		must(t, b, j)
		w := start(t.Context(), b, ask("lock"))
		wants(t, b.Break(t.Context(), "lock", g.Token, true), nil)
		wants(t, returns(t, w).err, nil)
		wants(t, a.Release(t.Context(), r), driver.ErrLost)
		for _, late := range []driver.Request{r, j} { // a late copy must create nothing
			_, err := a.Acquire(t.Context(), late)
			wants(t, err, driver.ErrLost)
		}
	})
}

func TestInspect(t *testing.T) {
	inBubble(t, func(t *testing.T, a, b *Backend) {
		r := ask("lock")
		r.Label = "shop"
		g := must(t, a, r)
		time.Sleep(3 * time.Second)
		j, waiting := join(r), ask("lock")
		must(t, b, j)
		start(t.Context(), b, waiting)
		time.Sleep(time.Second)
		q, err := b.Inspect(t.Context(), "lock")
		wants(t, err, nil)
		names := map[driver.ID]string{r.ID: "holder", j.ID: "join", waiting.ID: "waiter"}
		var got []string
		for _, e := range slices.Concat(q.Holders(), q.Waiters()) {
			got = append(got, fmt.Sprintf("%s %q %v %v %v", names[e.ID], e.Label, e.Token == g.Token, e.Age, e.Left))
		}
		want := []string{
			`holder "shop" true 4s 6s`,
			`join "shop" true 1s 9s`,
			`waiter "" false 1s 10s`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q\nwant %q", got, want)
		}
		q.Arrivals[0].Broken = true // a copy
		wants(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, nil)
		if q, err := b.Inspect(t.Context(), "free"); q.Len() > 0 || err != nil {
			t.Errorf("of a free name: %v, %v", q, err)
		}
		time.Sleep(3 * ttl)
		q, _ = b.Inspect(t.Context(), "lock")
		if q.Len() > 0 { // the waiter was granted, and expired undetected
			t.Errorf("what has expired is shown: %v", q)
		}
		if names, _ := b.List(t.Context()); len(names) > 0 {
			t.Errorf("List: %q", names)
		}
	})
}
