//go:build linux

package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func fixed(name string, ttl time.Duration) driver.Request {
	r := request(name, ttl)
	r.Fixed = true
	return r
}

// What was granted to a Fixed request stands until its time, also when its process is killed; its
// other requests go at once.
func TestFixedOutlivesItsProcess(t *testing.T) {
	const ttl = 700 * time.Millisecond
	dir := t.TempDir()
	b, c := openTest(t, dir), start(t, dir)
	c.do("acquire other 1h")
	c.do("acquire long 1h fixed")
	before := time.Now()
	c.do("acquire a %v fixed", ttl)
	c.kill()
	acquire(t, b, request("other", long))
	w := request("long", long)
	w.Wait = false
	for range 3 { // also after it was swept
		if _, err := b.Acquire(t.Context(), w); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("of what is fixed for an hour: %v", err)
		}
		openTest(t, dir)
	}
	acquire(t, b, request("a", long))
	if d := time.Since(before); d < ttl {
		t.Errorf("free after %v, before its time", d)
	}
	if dead, err := b.table.cells.dead(b.session.id, 0); err != nil || len(dead) != 0 {
		t.Errorf("left of the dead: %v, %v", dead, err)
	}
}

// Close leaves it too, but not what was given up, and nothing that waits.
func TestFixedOutlivesClose(t *testing.T) {
	r := newRig(t)
	q, fleeting, held := fixed("a", 10*second), request("b", 10*second), fixed("c", 10*second)
	acquire(t, r.a, q)
	acquire(t, r.a, fleeting)
	acquire(t, r.b, held)
	waits := background(t, r.a, fixed("c", 10*second))
	r.advance(6 * second)
	if err := renew(r.a, q); err != nil {
		t.Fatal(err)
	}
	if err := r.a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := answer(t, waits); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a waiter: %v", err)
	}
	for name, n := range map[string]int{"a": 1, "b": 0, "c": 1} {
		if got := inspect(t, r.b, name).Len(); got != n {
			t.Errorf("%q: %d requests after Close, want %d", name, got, n)
		}
	}
	reuse(t, r)
	r.advance(10*second - 1) // since its renewal
	if err := r.try(); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("a moment before its time: %v", err)
	}
	r.advance(1)
	if err := r.try(); err != nil {
		t.Fatalf("at its time: %v", err)
	}
}

// reuse opens a client that takes the cells of those who are gone, and writes in all of them.
func reuse(t *testing.T, r *rig) {
	t.Helper()
	dir, c := filepath.Dir(r.b.table.path), testConfig()
	c.clock = func() (int64, error) { return r.now.Load(), nil }
	x := openTestConfig(t, dir, c)
	if x.session.id.home() != 0 { // it has swept, and the next finds the place free
		x = openTestConfig(t, dir, c)
	}
	if x.session.id.home() != 0 {
		t.Fatalf("the home of the one that is gone was not taken, but %d", x.session.id.home())
	}
	x.clock = func() (int64, error) { return r.now.Load() + 1e15, nil }
	for i := range 3 * blockWords {
		acquire(t, x, request(fmt.Sprint("reuse", i), long))
	}
}

// The time of a renewal is kept when its client dies, whoever takes its cells.
func TestFixedThatWasRenewedOutlivesItsProcess(t *testing.T) {
	r := newRig(t)
	q := fixed("a", 10*second)
	g := acquire(t, r.a, q)
	r.advance(6 * second)
	if err := renew(r.a, q); err != nil {
		t.Fatal(err)
	}
	die(t, r.a)
	r.advance(1)
	reuse(t, r)
	h := inspect(t, r.b, "a").Holders()
	if len(h) != 1 || h[0].Token != g.Token || h[0].Left != 10*second-1 {
		t.Fatalf("holders: %+v", h)
	}
	if err := renew(r.a, q); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew by the one that was found dead: %v", err)
	}
	if err := r.b.Break(t.Context(), "a", g.Token, true); err != nil {
		t.Errorf("Break: %v", err)
	}
	if err := r.try(); err != nil {
		t.Errorf("after the break: %v", err)
	}
}

func TestTTLThatCannotBeKeptIsRefused(t *testing.T) {
	b := openTest(t, t.TempDir())
	r := request("a", b.Capabilities().MaxTTL)
	acquire(t, b, r)
	if left := inspect(t, b, "a").Holders()[0].Left; left < r.TTL-time.Hour {
		t.Errorf("left of %v: %v", r.TTL, left)
	}
	r = request("b", b.Capabilities().MaxTTL+1)
	if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "100ms to") {
		t.Errorf("err = %v", err)
	}
}

// Descriptors and mappings of a client do not grow with the others that it meets.
func TestClientsKeepNothingOpenOfEachOther(t *testing.T) {
	const clients, each = 100, 8
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	dir := t.TempDir()
	maps := func() int {
		data, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), dir)
	}
	before := count()
	var bs []*Backend
	for range clients {
		b := openTest(t, dir)
		w := request("a", long)
		go b.Acquire(t.Context(), w)
		bs = append(bs, b)
	}
	eventually(t, "all stand in the queue", func() bool { return inspect(t, bs[0], "a").Len() == clients })
	for _, b := range bs {
		inspect(t, b, "a")
	}
	if n := count() - before; n > clients*each {
		t.Errorf("%d clients have %d descriptors", clients, n)
	}
	if n := maps(); n > 2*clients {
		t.Errorf("%d clients have %d mappings", clients, n)
	}
}

// A process that crashes and starts again and again behind a holder and a waiter leaves nothing
// that piles up.
func TestCrashLoopLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	a := openTest(t, dir)
	acquire(t, a, request("a", long))
	background(t, a, request("a", long))
	for range 5 {
		c := start(t, dir)
		c.send("acquire a 1h")
		eventually(t, "it waits", func() bool { return inspect(t, a, "a").Len() == 3 })
		c.kill()
	}
	start(t, dir)
	if n := inspect(t, a, "a").Len(); n != 2 {
		t.Errorf("%d requests", n)
	}
	if n := len(states(t, a)); n != 1 {
		t.Errorf("%d states", n)
	}
	blocks := 0
	err := a.table.cells.each(func(int, sessionID, *uint64) error { blocks++; return nil })
	if err != nil || blocks != 2 {
		t.Errorf("%d blocks are taken, %v", blocks, err)
	}
	if files, err := os.ReadDir(filepath.Join(a.table.path, "bells")); err != nil || len(files) != 2 {
		t.Errorf("bells: %v, %v", files, err)
	}
}
