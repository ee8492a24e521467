//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// The poller itself may have to write to its pipe. A full pipe must not stop it.
func TestWritingToAFullPipeDoesNotWait(t *testing.T) {
	b := openTest(t, t.TempDir())
	for range 1 << 15 { // more than a pipe takes
		b.table.wakeUp(b.session.id, 0)
	}
	done := make(chan error, 1)
	go func() {
		b.session.wakeSelf()
		done <- nil
	}()
	if err := answer(t, done); err != nil {
		t.Error(err)
	}
	acquire(t, b, request("a", long))
	r := request("a", 200*time.Millisecond)
	acquire(t, b, request("b", 200*time.Millisecond))
	r.Name = "b" // and the poller still works
	acquire(t, b, r)
}

func TestKilledHolderFreesAtOnce(t *testing.T) {
	dir := t.TempDir()
	b := openTest(t, dir)
	c := start(t, dir)
	if s := c.do("acquire a 1h"); s == "" {
		t.Fatal("no answer")
	}
	w := request("a", long)
	done := background(t, b, w)
	second := start(t, dir) // nor does a killed waiter block another
	second.send("acquire a 1h")
	eventually(t, "both wait", func() bool { return inspect(t, b, "a").Len() == 3 })
	last := background(t, b, request("a", long))
	killed := time.Now()
	c.kill()
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
	t.Logf("takeover after %v", time.Since(killed))
	second.kill()
	release(t, b, w)
	if err := answer(t, last); err != nil {
		t.Fatal(err)
	}
}

// A writer that is killed while it waits does not block the readers behind it.
func TestKilledWaiterLetsReadersPass(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), start(t, dir)
	read := func() driver.Request {
		r := request("a", long)
		r.Mode = driver.Shared
		return r
	}
	acquire(t, b, read())
	c.send("acquire a 1h")
	eventually(t, "the writer waits", func() bool { return inspect(t, b, "a").Len() == 2 })
	done := background(t, b, read())
	c.kill()
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
}

// Programs that a holder started inherit nothing that would keep its lock.
func TestKilledHolderFreesAtOnceThoughItsChildLives(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), start(t, dir)
	c.do("acquire a 1h")
	pid, err := strconv.Atoi(c.do("spawn"))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	c.kill()
	acquire(t, b, request("a", long))
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the program is gone: %v", err)
	}
}

func TestStoppedHolderFreesAtItsTTL(t *testing.T) {
	const ttl = 500 * time.Millisecond
	dir := t.TempDir()
	b := openTest(t, dir)
	c := start(t, dir)
	before := time.Now()
	token := c.do("acquire a %v", ttl)
	c.signal(syscall.SIGSTOP)
	g := acquire(t, b, request("a", long))
	if d := time.Since(before); d < ttl {
		t.Errorf("taken over after %v, before the TTL", d)
	}
	if fmt.Sprint(g.Token) <= token {
		t.Errorf("token %d after %s", g.Token, token)
	}
	c.signal(syscall.SIGCONT)
	for _, do := range []string{"renew", "release"} {
		if s := c.do(do); s != driver.ErrLost.Error() {
			t.Errorf("%s by the stopped process: %q", do, s)
		}
	}
	if h := inspect(t, b, "a").Holders(); len(h) != 1 || h[0].Token != g.Token {
		t.Error("the successor was touched")
	}
}

// A granted Fixed request lasts for its full time even if its process is killed. Other requests of
// the process end at once.
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
	for range 3 { // also after a purge
		if _, err := b.Acquire(t.Context(), w); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("acquire of a name that is held for an hour: %v", err)
		}
		openTest(t, dir)
	}
	acquire(t, b, request("a", long))
	if d := time.Since(before); d < ttl {
		t.Errorf("free after %v, before its time", d)
	}
	if dead, err := b.table.cells.dead(b.session.id, 0); err != nil || len(dead) != 0 {
		t.Errorf("dead clients are left: %v, %v", dead, err)
	}
}

// The time of a renewal is kept when its client dies, even if another client takes its cells.
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
		t.Errorf("Renew by the client that was found dead: %v", err)
	}
	if err := r.b.Break(t.Context(), "a", g.Token, true); err != nil {
		t.Errorf("Break: %v", err)
	}
	if err := r.try(); err != nil {
		t.Errorf("after the break: %v", err)
	}
}

// A client needs no more descriptors and mappings for the other clients that it meets.
func TestClientsKeepNothingOpenOfEachOther(t *testing.T) {
	const clients, each = 100, 8
	count := func() (n int) {
		var st syscall.Stat_t
		for fd := range 1 << 14 {
			if syscall.Fstat(fd, &st) == nil {
				n++
			}
		}
		return n
	}
	dir := t.TempDir()
	maps := func() int {
		data, err := os.ReadFile("/proc/self/maps")
		if err != nil && runtime.GOOS == "linux" { // other systems do not report it
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

// A process that crashes and restarts again and again behind a holder and a waiter does not let
// anything pile up.
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
	if files, err := os.ReadDir(filepath.Join(a.table.path, pipesFolder)); err != nil || len(files) != 2 {
		t.Errorf("pipes: %v, %v", files, err)
	}
}
