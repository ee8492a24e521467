//go:build linux || darwin

package file

import (
	"errors"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestNamesArePrefixedListedAndDistinct(t *testing.T) {
	dir := t.TempDir()
	a := openTest(t, dir)
	p, err := newBackend(dir, "p/", testConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	names := []string{"a", "A", "a ", "a/", "a/b", "..", "\u00e9", "e\u0301", "\"\\<&>\u2028", strings.Repeat("x", 255)}
	tokens := map[driver.Token]bool{}
	for _, b := range []*Backend{a, p} {
		for _, n := range names {
			r := request(n, long)
			r.Wait = false
			tokens[acquire(t, b, r).Token] = true
			if q := inspect(t, b, n); q.Len() != 1 || q.Arrivals[0].Name != n || q.Arrivals[0].ID != r.ID {
				t.Errorf("Inspect does not return the request of %q", n)
			}
		}
	}
	if len(tokens) != 2*len(names) {
		t.Error("names are not distinct")
	}
	extra := request("a", long)
	done := background(t, p, extra)
	release(t, p, extra)
	if err := answer(t, done); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Acquire of what was released while it waited: %v", err)
	}
	got, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(names) {
		t.Errorf("%d names under the prefix, want %d: %q", len(got), len(names), got)
	}
}

func TestBreak(t *testing.T) {
	r := newRig(t)
	q := request("a", 10*second)
	g := acquire(t, r.a, q)
	j := join(q, g)
	acquire(t, r.b, j)
	if err := r.b.Break(t.Context(), "a", g.Token+1, true); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("another token: %v", err)
	}
	if err := errors.Join(renew(r.a, q), renew(r.b, j)); err != nil {
		t.Fatal(err)
	}
	w := request("a", long)
	done := background(t, r.b, w)
	// that of the waiter
	if err := r.b.Break(t.Context(), "a", 0, true); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("no token: %v", err)
	}
	for range 2 {
		if err := r.b.Break(t.Context(), "a", g.Token, false); err != nil {
			t.Fatal(err)
		}
		r.advance(second)
	}
	if h := inspect(t, r.b, "a").Holders(); len(h) != 2 || !h[0].Broken || !h[1].Broken || h[0].Left != 8*second {
		t.Errorf("holders after the break: %+v", h)
	}
	if !errors.Is(renew(r.a, q), driver.ErrLost) || !errors.Is(renew(r.b, j), driver.ErrLost) {
		t.Error("a broken hold can be renewed")
	}
	if _, err := r.b.Acquire(t.Context(), join(q, g)); !errors.Is(err, driver.ErrLost) {
		t.Errorf("joining a broken hold: %v", err)
	}
	r.advance(8*second - 1)
	if n := inspect(t, r.b, "a").Len(); n != 3 {
		t.Errorf("%d requests a moment before the end", n)
	}
	r.advance(1)
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
	next := inspect(t, r.a, "a").Holders()[0]
	if next.Token <= g.Token {
		t.Error("the token does not grow over a break")
	}
	if err := r.a.Break(t.Context(), "a", next.Token, true); err != nil {
		t.Fatal(err)
	}
	if inspect(t, r.a, "a").Len() != 0 {
		t.Error("force left something")
	}
	if err := renew(r.b, w); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew after force: %v", err)
	}
}
