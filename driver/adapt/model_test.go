package adapt_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

// step is one step of a random history.
type step struct {
	what   int           // see history.do
	client int           // the client that does it
	name   int           // the lock
	pick   int           // which of the earlier requests, from the last on
	ttl    time.Duration // of a new request, or how long to pause
	shared bool          // a new request is for reading, if the lock can be shared
}

// TestRandomHistories lets two clients do everything to two locks, with calls that fail before and
// after they are executed, and compares the shelf with what the requests were promised.
func TestRandomHistories(t *testing.T) {
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			what: rapid.IntRange(0, 11).Draw(t, "what"), client: rapid.IntRange(0, 1).Draw(t, "client"),
			name: rapid.IntRange(0, 1).Draw(t, "name"), pick: rapid.IntRange(0, 5).Draw(t, "pick"),
			ttl:    time.Duration(rapid.IntRange(1, 20).Draw(t, "ttl")) * time.Second,
			shared: rapid.IntRange(0, 2).Draw(t, "shared") > 0,
		}
	}), 1, 60)
	rapid.Check(t, func(rt *rapid.T) {
		u := setUp{true, rapid.Bool().Draw(rt, "wakes"), rapid.Bool().Draw(rt, "shares")}
		all, wrong := steps.Draw(rt, "steps"), ""
		synctest.Test(t, func(t *testing.T) { wrong = run(t, u, all) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// history is the state of a random history.
type history struct {
	t        *testing.T
	s        *shelf
	shares   bool
	backends [2]*adapt.Backend
	clients  [2]*client
	failing  bool   // a step has let calls fail
	wrong    string // the first thing that was wrong

	mu   sync.Mutex
	all  []*asked
	line map[string][]*asked // by client and name: those that wait, in order
}

// asked is a request of the history.
type asked struct {
	driver.Request
	client   int
	hold     *asked // for a join
	cancel   context.CancelFunc
	returned bool
	err      error
	until    time.Time // its hold is promised until then
	released bool      // its release was answered
	unsure   bool      // its release must have Uncertain set
}

func (h *history) fail(format string, args ...any) {
	if h.wrong == "" {
		h.wrong = fmt.Sprintf(format, args...)
	}
}

func run(t *testing.T, u setUp, steps []step) string {
	h := &history{t: t, s: newShelf(true), shares: u.shares, line: map[string][]*asked{}}
	for i := range h.backends {
		h.backends[i], h.clients[i] = start(t, u, h.s)
	}
	for _, s := range steps {
		h.do(s)
		synctest.Wait()
		h.check()
	}
	h.end()
	return h.wrong
}

func (h *history) do(s step) {
	var p *asked
	h.mu.Lock()
	if n := len(h.all); n > 0 {
		p = h.all[n-1-s.pick%min(n, 6)]
	}
	h.mu.Unlock()
	name := []string{"one", "two"}[s.name]
	switch {
	case s.what < 4 || p == nil:
		r := ask(name, s.ttl)
		r.Wait = s.what > 0
		r.Fixed = s.ttl == 7*time.Second
		if h.shares && s.shared {
			r.Mode = driver.Shared
		}
		h.acquire(&asked{Request: r, client: s.client})
	case s.what == 4 && h.shares:
		h.join(s, p)
	case s.what == 4 && p.hold == nil:
		h.acquire(&asked{Request: keep(p.Request, s.ttl), client: p.client, hold: p})
	case s.what == 5 && (p.hold == nil || h.shares) && p.until.After(time.Now()) && !p.Fixed:
		if res := h.backends[p.client].Renew(h.t.Context(), []driver.Request{p.Request})[0]; res.Err == nil {
			p.until = later(p.until, res.SentAt.Add(res.TTL))
		}
	case s.what < 8:
		h.release(p)
	case s.what == 8:
		p.cancel()
	case s.what == 9: // the next calls of the client fail, each before or after it is executed
		left := s.pick
		h.failing = true
		h.clients[s.client].setGate(func(_ context.Context, executed bool) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if executed == (s.name == 0) && left > 0 {
				left--
				return errDown
			}
			return nil
		})
	default:
		time.Sleep(s.ttl / 4)
	}
}

func (h *history) acquire(a *asked) {
	ctx, cancel := context.WithCancel(h.t.Context())
	a.cancel = cancel
	failing := h.failing
	key := fmt.Sprint(a.client, a.Name)
	h.mu.Lock()
	h.all = append(h.all, a)
	if a.Wait && !a.Join() { // a join passes the line
		h.line[key] = append(h.line[key], a)
	}
	h.mu.Unlock()
	go func() {
		g, err := h.backends[a.client].Acquire(ctx, a.Request)
		h.mu.Lock()
		defer h.mu.Unlock()
		if a.returned, a.err = true, err; err == nil {
			a.until = g.SentAt.Add(g.TTL)
		}
		if a.hold != nil && h.shares && !failing {
			h.joined(a)
		}
		a.released = driver.Refused(err)
		a.unsure = err != nil && !driver.HasWaited(err)
		for i, w := range h.line[key] {
			if w == a {
				if i > 0 && err == nil {
					h.fail("a waiter was granted ahead of %d others of its client", i)
				}
				h.line[key] = append(h.line[key][:i:i], h.line[key][i+1:]...)
				break
			}
		}
	}()
	synctest.Wait()
}

// join has a client join the hold of p, whichever client that is of.
func (h *history) join(s step, p *asked) {
	r := keep(p.Request, s.ttl)
	r.Wait = s.name == 0 // makes no difference
	r.Fixed = s.ttl > 10*time.Second
	if r.Mode = driver.Exclusive; s.shared {
		r.Mode = driver.Shared
	}
	h.acquire(&asked{Request: r, client: s.client, hold: p})
}

// joined checks the answer to a join by what else was promised. mu is held.
func (h *history) joined(a *asked) {
	stands, covers := false, false
	for _, x := range h.all {
		if x != a && x.Owner == a.Owner && time.Now().Before(x.until) {
			stands, covers = true, covers || x.Mode.Covers(a.Mode)
		}
	}
	switch {
	case a.err == nil && stands && !covers:
		h.fail("a hold was joined in a mode that it does not cover")
	case covers && a.err != nil, stands && !covers && !errors.Is(a.err, driver.ErrUpgrade):
		h.fail("a join of a hold that stands, and covers its mode: %t: %v", covers, a.err)
	case a.err != nil && !driver.Refused(a.err):
		h.fail("a join was neither granted nor refused: %v", a.err)
	}
}

func (h *history) release(a *asked) {
	h.mu.Lock()
	returned, released := a.returned, a.released
	h.mu.Unlock()
	if !returned || released {
		return
	}
	r := a.Request
	r.Uncertain = a.unsure
	err := h.backends[a.client].Release(h.t.Context(), r)
	if lasts := time.Now().Before(a.until); lasts && errors.Is(err, driver.ErrLost) {
		h.fail("the release of a hold that lasts for %s returned %v", time.Until(a.until), err)
	}
	h.mu.Lock()
	a.until = time.Time{} // it is not used any more, whether or not that was answered
	a.released = err == nil || errors.Is(err, driver.ErrLost)
	h.mu.Unlock()
}

// check compares the shelf with the promises.
func (h *history) check() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shares {
		h.checkMembers()
		return
	}
	for _, a := range h.all {
		if !time.Now().Before(a.until) {
			continue
		}
		id := a.Owner
		if got := h.s.holder(a.Name); got != id {
			h.fail("%v was promised %q for another %s, and %v has it", id, a.Name, time.Until(a.until), got)
		}
		if d := h.s.ends(a.Name); d < time.Until(a.until) {
			h.fail("a hold of %q ends in %s, and was promised for %s", a.Name, d, time.Until(a.until))
		}
	}
}

// checkMembers is check for locks that can be shared: each request that was promised to hold does,
// and those of different owners are readers.
func (h *history) checkMembers() {
	for i, a := range h.all {
		if !time.Now().Before(a.until) {
			continue
		}
		if d := h.s.has(a.Request); d < time.Until(a.until) {
			h.fail("%v was promised %q for another %s, and has it for %s", a.ID, a.Name, time.Until(a.until), d)
		}
		for _, x := range h.all[:i] {
			if x.Name == a.Name && x.Owner != a.Owner && time.Now().Before(x.until) && (x.Mode == driver.Exclusive || a.Mode == driver.Exclusive) {
				h.fail("%q was promised to two owners: %s and %s", a.Name, a.Mode, x.Mode)
			}
		}
	}
}

// end lets all waiters have their turn, releases everything, and checks that nothing is left.
func (h *history) end() {
	for _, c := range h.clients {
		c.setGate(nil)
	}
	for range 3 * (len(h.all) + 1) {
		time.Sleep(2 * time.Second)
		for _, a := range h.all {
			h.release(a)
		}
		synctest.Wait()
		h.check()
	}
	time.Sleep(time.Minute) // what a late copy left has expired
	for _, a := range h.all {
		if h.mu.Lock(); !a.returned || !a.released {
			h.fail("a request is left: returned %t, error %v, released %t", a.returned, a.err, a.released)
		}
		h.mu.Unlock()
		a.cancel()
	}
	synctest.Wait()
	for i, b := range h.backends {
		if requests, lines := b.Kept(); requests != 0 || lines != 0 {
			h.fail("client %d has %d requests and %d lines on record", i, requests, lines)
		}
	}
	if n := h.s.watched(); n != 0 {
		h.fail("%d watches are left", n)
	}
	for _, name := range []string{"one", "two"} {
		if id := h.s.holder(name); !id.IsZero() {
			h.fail("%v has %q", id, name)
		}
	}
}
