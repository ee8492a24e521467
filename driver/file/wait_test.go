//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestWaitersAreServedInOrderAcrossClients(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	first := request("orders/42", long)
	last := acquire(t, a, first).Token
	held := first
	var waiting []driver.Request
	var done []<-chan error
	for i := range 6 {
		r := request("orders/42", long)
		waiting = append(waiting, r)
		done = append(done, background(t, []*Backend{a, b}[i%2], r))
	}
	for i, r := range waiting {
		by := a
		if i%2 == 0 {
			by = b
		}
		release(t, map[bool]*Backend{true: a, false: by}[i == 0], held)
		if err := answer(t, done[i]); err != nil {
			t.Fatal(err)
		}
		q := inspect(t, b, "orders/42")
		h := q.Holders()
		if len(h) != 1 || h[0].ID != r.ID || h[0].Token <= last || q.Len() != len(waiting)-i {
			t.Fatalf("after hand-off %d: %d holders, queue of %d", i, len(h), q.Len())
		}
		last, held = h[0].Token, r
	}
	release(t, b, held)
	if n := states(t, a); len(n) != 0 {
		t.Errorf("an idle directory has states %v", n)
	}
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	acquire(t, a, r)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	w := request("a", long)
	go func() {
		_, err := b.Acquire(ctx, w)
		done <- err
	}()
	eventually(t, "it waits", func() bool { return inspect(t, a, "a").Len() == 2 })
	cancel()
	if err := answer(t, done); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err) // it was in the queue
	}
	release(t, b, w)
	if n := inspect(t, a, "a").Len(); n != 1 {
		t.Errorf("%d requests after the cancellation", n)
	}
	if _, err := b.Acquire(ctx, request("b", long)); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("under a cancelled context: %v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests)+len(b.waiting) != 0 {
		t.Error("something is left")
	}
}

// A wait that is cancelled while the request is granted passes the grant on.
func TestCancelledWaitPassesTheGrantOn(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	for range 50 {
		r, last := request("a", long), request("a", long)
		acquire(t, a, r)
		ctx, cancel := context.WithCancel(t.Context())
		middle := request("a", long)
		done := make(chan error, 1)
		go func() {
			_, err := b.Acquire(ctx, middle)
			done <- err
		}()
		eventually(t, "it waits", func() bool { return inspect(t, a, "a").Len() == 2 })
		end := background(t, a, last)
		go cancel()
		release(t, a, r)
		if err := answer(t, done); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		release(t, b, middle)
		if err := answer(t, end); err != nil {
			t.Fatal(err)
		}
		release(t, a, last)
	}
}

// A waiter learns of a grant by its own client directly, of a grant by another client through the
// pipe, and without the pipe at the next check.
func TestWaiterIsNotified(t *testing.T) {
	for _, c := range []struct {
		name        string
		own, noPipe bool
		tick        time.Duration
	}{
		{name: "directly", own: true, tick: time.Hour},
		{name: "by the pipe", tick: time.Hour},
		{name: "by a check", noPipe: true, tick: tick},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, set := t.TempDir(), testConfig()
			set.tick = c.tick
			a, b := openTest(t, dir), openTestConfig(t, dir, set)
			if c.own {
				a = b
			}
			if c.noPipe {
				if err := os.Remove(filepath.Join(b.table.path, pipesFolder, pipeName(b.session.id))); err != nil {
					t.Fatal(err)
				}
			}
			r := request("a", long)
			acquire(t, a, r)
			done := background(t, b, request("a", long))
			release(t, a, r)
			if err := answer(t, done); err != nil {
				t.Error(err)
			}
		})
	}
}

// If the runtime cannot wait for a pipe, the poller checks at every tick, and does not spin.
func TestPipeThatCannotBeWaitedFor(t *testing.T) {
	const period = 300 * time.Millisecond
	dir := t.TempDir()
	var readings atomic.Int64
	c := testConfig()
	c.clock = func() (int64, error) { readings.Add(1); return monotonic() }
	a, b := openTest(t, dir), openTestConfig(t, dir, c)
	// the runtime does not wait for a file that was opened to block, which has no deadlines either
	fd, err := openFile(filepath.Join(b.table.path, pipesFolder, pipeName(b.session.id)), syscall.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	b.session.pipe.Close()
	b.session.pipe = os.NewFile(uintptr(fd), "pipe")
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	if err := b.session.pipe.SetReadDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
		t.Fatalf("SetReadDeadline: %v", err)
	}
	r := request("a", long)
	acquire(t, a, r)
	done := background(t, b, request("a", long))
	readings.Store(0)
	begun := time.Now()
	time.Sleep(period)
	if n, most := readings.Load(), 2*int64(1+time.Since(begun)/tick); n > most || n == 0 {
		t.Errorf("%d readings of the clock in %v, want at most %d", n, period, most)
	}
	release(t, a, r)
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
}

func TestWaiterIsKeptAlive(t *testing.T) {
	r := newRig(t)
	q, w := request("a", long), request("a", 10*second)
	acquire(t, r.a, q)
	done := background(t, r.b, w)
	for range 8 {
		r.advance(4 * second)
		eventually(t, "it is kept alive", func() bool {
			r.b.mu.Lock()
			h := r.b.requests[w.ID]
			r.b.mu.Unlock()
			at, err := load(h.word)
			return err == nil && int64(at) == r.now.Load()
		})
	}
	if err := renew(r.b, w); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Renew of a waiting request: %v", err)
	}
	release(t, r.a, q)
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
	if err := renew(r.b, w); err != nil {
		t.Error(err)
	}
}

// A waiter whose slot stays unreadable gets an error: it does not hang.
func TestWaiterLearnsOfDamage(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	acquire(t, a, request("a", long))
	done := background(t, b, request("a", long))
	if err := os.Truncate(filepath.Join(b.table.path, "table"), 0); err != nil {
		t.Fatal(err)
	}
	if err := answer(t, done); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

// A request that begins to wait while its client closes starts no poller: it would not be woken any
// more, and Close would wait for it.
func TestCloseOvertakesWhoComesToWait(t *testing.T) {
	var s steps
	c := testConfig()
	c.tick, c.at = time.Hour, s.at // without a wake-up a grant is found too late
	b := openTestConfig(t, t.TempDir(), c)
	defer b.session.wakeSelf() // ends a poller that must not be there
	acquire(t, b, request("a", long))
	waits := background(t, b, request("a", long))
	polling := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.polling
	}
	eventually(t, "the client polls for the first waiter", polling)
	comes := s.stop("unlinked", 1, func() error {
		_, err := b.Acquire(t.Context(), request("a", long))
		return err
	})
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	eventually(t, "the client does not poll any more", func() bool { return !polling() })
	if err := comes(); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Acquire of the new waiter: %v", err)
	}
	if err := answer(t, waits); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Acquire of the first waiter: %v", err)
	}
	if err := answer(t, closed); err != nil {
		t.Errorf("Close: %v", err)
	}
}
