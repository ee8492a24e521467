package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

func TestOneLooksForAllWhoView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.server.Reach(t.Context())
		time.Sleep(time.Minute)
		if n := r.looked.lists.Load(); n != 0 {
			t.Errorf("%d looks, and no page is open", n)
		}
		var all []*viewed
		for range 10 {
			all = append(all, r.view())
		}
		time.Sleep(3 * time.Second)
		if n := r.looked.lists.Load(); n < 9 || n > 11 {
			t.Errorf("%d looks in 3 s, want about 10, as for one viewer", n)
		}
		for i, v := range all {
			if n := len(v.got("look")); n < 9 || n > 11 {
				t.Errorf("viewer %d got %d looks, want about 10", i, n)
			}
			v.leave()
		}
		time.Sleep(linger + time.Second)
		before := r.looked.lists.Load()
		time.Sleep(time.Minute)
		if n := r.looked.lists.Load(); n != before {
			t.Errorf("%d looks after the last viewer has left", n-before)
		}
	})
}

func TestAReloadIsNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		v := r.view()
		time.Sleep(time.Second)
		v.leave()
		time.Sleep(linger / 2)
		v = r.view()
		time.Sleep(2 * linger)
		if h := v.history(t); len(h) != 0 {
			t.Errorf("the history: %+v", h)
		}
	})
}

// TestHistory: each viewer gets every event from the time when a page was open, once; what happened
// in between is not guessed.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		a, b := r.client("a"), r.client("b")
		pass := func(from *dlock.Lease, to *dlock.Client) *dlock.Lease {
			t.Helper()
			got := make(chan *dlock.Lease)
			go func() {
				l, err := to.Mutex("x").Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- l
			}()
			time.Sleep(time.Second)
			from.Unlock(t.Context())
			return <-got
		}
		first := r.view()
		l := r.lock(a.Mutex("x"))
		time.Sleep(time.Second)
		l = pass(l, b)
		time.Sleep(time.Second)
		first.leave()
		time.Sleep(2 * linger)
		l = pass(l, a) // unseen
		second := r.view()
		time.Sleep(time.Second)
		pass(l, b)
		time.Sleep(time.Second)
		var said []string
		for i, e := range second.history(t) {
			said = append(said, string(e.Kind)+" "+e.From+e.To)
			if e.Number != int64(i+1) {
				t.Errorf("event %d has the number %d", i, e.Number)
			}
		}
		if got, want := strings.Join(said, ", "), "handed off ab, not watched , handed off ab"; got != want {
			t.Errorf("the history: %s, want %s", got, want)
		}
		if got := first.history(t); len(got) != 1 {
			t.Errorf("the first viewer got %+v", got)
		}
		if got := r.shown().History; len(got) != 3 {
			t.Errorf("/api/locks has %+v", got)
		}
	})
}

// TestHistoryHasABreakThatNoLookSaw: a broken hold may be released before the next snapshot. Each
// viewer gets the break once, even if it was made while no page was open.
func TestHistoryHasABreakThatNoLookSaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.Secret = "sesame" })
		end := func(l *dlock.Lease, force bool, want int) {
			t.Helper()
			body := fmt.Sprintf(`{"name":"x","token":"%d","force":%t}`, l.Token(), force)
			if w := r.ask("POST", "/api/break", body, "Authorization", "Bearer sesame"); w.Code != want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, want)
			}
			l.Unlock(t.Context()) // an error: it was broken
		}
		viewers := []*viewed{r.view(), r.view()}
		a := r.lock(r.client("a").Mutex("x"))
		time.Sleep(time.Second)
		end(a, false, http.StatusOK)
		time.Sleep(time.Second)
		b := r.lock(r.client("b").Mutex("x"))
		time.Sleep(time.Second)
		end(b, true, http.StatusOK)
		end(b, false, http.StatusConflict)
		time.Sleep(time.Second)
		for _, v := range viewers {
			v.leave()
		}
		time.Sleep(2 * linger)
		end(r.lock(r.client("c").Mutex("x")), false, http.StatusOK)
		time.Sleep(linger)
		viewers = append(viewers, r.view())
		time.Sleep(time.Second)
		for i, want := range []string{"broken a, broken b", "broken a, broken b", "broken a, broken b, not watched , broken c"} {
			var said []string
			for _, e := range viewers[i].history(t) {
				said = append(said, string(e.Kind)+" "+e.From)
			}
			if got := strings.Join(said, ", "); got != want {
				t.Errorf("viewer %d has: %s, want %s", i, got, want)
			}
		}
		if got := r.shown(); len(got.History) != 4 || got.Total != (watch.Counts{Breaks: 1}) {
			t.Errorf("/api/locks has %+v, %+v", got.History, got.Total)
		}
	})
}

func TestABackendThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		var tries atomic.Int64
		r := newRig(t, func(o *Options) {
			b := o.Backends[0]
			o.Backends[0].Open = func(ctx context.Context) (*dlock.Client, error) {
				tries.Add(1)
				if !up.Load() {
					return nil, errors.New("no answer from cache:6379")
				}
				return b.Open(ctx)
			}
		})
		if err := r.server.Reach(t.Context())[0]; err == nil {
			t.Fatal("it was reached")
		}
		time.Sleep(time.Minute)
		if n := tries.Load(); n != 1 {
			t.Errorf("%d tries, and no page is open", n)
		}
		v := r.view()
		time.Sleep(time.Second)
		if got := r.shown(); !strings.Contains(got.Error, "no answer from cache") || got.At != nil {
			t.Errorf("%+v", got)
		}
		up.Store(true)
		r.lock(r.client("a").Mutex("x"))
		time.Sleep(3 * time.Second)
		if got := r.shown(); got.Error != "" || len(got.Names) != 1 {
			t.Errorf("%+v", got)
		}
		v.leave()
	})
}

// TestABackendThatFails: its last state stays, beside the error.
func TestABackendThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lock(r.client("a").Mutex("x"))
		v := r.view()
		time.Sleep(time.Second)
		r.looked.fail(errors.New("it is gone"))
		time.Sleep(time.Second)
		if got := r.shown(); !strings.Contains(got.Error, "it is gone") || len(got.Names) != 1 {
			t.Errorf("%+v", got)
		}
		r.looked.fail(nil)
		time.Sleep(time.Second)
		if got := r.shown(); got.Error != "" {
			t.Errorf("%+v", got)
		}
		v.leave()
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		v := r.view()
		time.Sleep(time.Second)
		if err := r.server.Close(); err != nil {
			t.Error(err)
		}
		<-v.done
		if _, err := r.looked.Backend.List(t.Context()); !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("the client was not closed: %v", err)
		}
		if _, err := r.server.stations[0].client(t.Context()); !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("it was opened again: %v", err)
		}
	})
}
