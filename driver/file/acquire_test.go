//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestTryLeavesNothing(t *testing.T) {
	b := openTest(t, t.TempDir())
	acquire(t, b, request("a", long))
	before := states(t, b)
	r := request("a", long)
	r.Wait = false
	if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("err = %v", err)
	}
	if inspect(t, b, "a").Len() != 1 || len(b.requests) != 1 {
		t.Error("the request that was refused left something")
	}
	if after := states(t, b); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("a refusal wrote a state")
	}
}

func TestJoinsAndSemaphores(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	g := acquire(t, a, r)
	j := join(r, g)
	if jg := acquire(t, b, j); jg.Token != g.Token {
		t.Errorf("joined with token %d, want %d", jg.Token, g.Token)
	}
	release(t, a, r)
	next := background(t, a, request("a", long))
	release(t, b, j)
	if err := answer(t, next); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(t.Context(), join(r, g)); !errors.Is(err, driver.ErrLost) {
		t.Errorf("joining a hold that has ended: %v", err)
	}
	permit := func() driver.Request {
		r := request("s", long)
		r.Mode, r.Limit = driver.Shared, 2
		return r
	}
	p := permit()
	acquire(t, a, p)
	acquire(t, b, permit())
	third := background(t, b, permit())
	if n := len(inspect(t, a, "s").Holders()); n != 2 {
		t.Errorf("%d hold a semaphore of 2", n)
	}
	release(t, a, p)
	if err := answer(t, third); err != nil {
		t.Fatal(err)
	}
}

func TestSameRequestTwiceIsOne(t *testing.T) {
	b := openTest(t, t.TempDir())
	r := request("a", long)
	if g, h := acquire(t, b, r), acquire(t, b, r); g.Token != h.Token {
		t.Errorf("tokens %d and %d", g.Token, h.Token)
	}
	w := request("a", long)
	one, two := background(t, b, w), background(t, b, w)
	if n := inspect(t, b, "a").Len(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	release(t, b, r)
	if err := errors.Join(answer(t, one), answer(t, two)); err != nil {
		t.Error(err)
	}
	release(t, b, w)
	if err := b.Release(t.Context(), w); !errors.Is(err, driver.ErrLost) {
		t.Errorf("second Release: %v", err)
	}
}

func TestRequestMovesToTheClientThatSendsItAgain(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	if g, h := acquire(t, a, r), acquire(t, b, r); g.Token != h.Token {
		t.Errorf("tokens %d and %d", g.Token, h.Token)
	}
	if err := renew(b, r); err != nil {
		t.Error(err)
	}
	if err := renew(a, r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew by the first client: %v", err)
	}
}

func TestLateDuplicateCreatesNothing(t *testing.T) {
	r := newRig(t)
	q := request("a", 10*second)
	acquire(t, r.a, q)
	gone := q
	gone.Uncertain = true
	release(t, r.a, gone)
	r.advance(6 * second)
	// bars it for longer
	if err := r.a.Release(t.Context(), gone); !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	r.advance(10*second - 1)
	for _, b := range []*Backend{r.a, r.b} {
		if _, err := b.Acquire(t.Context(), q); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("late duplicate: %v", err)
		}
	}
	if n := inspect(t, r.b, "a").Len(); n != 0 {
		t.Error("the late duplicate created something")
	}
	r.advance(1)
	if inspect(t, r.b, "a"); len(states(t, r.b)) != 0 {
		t.Error("the tombstone stays")
	}
}

func TestExpiredRequestIsNotResumed(t *testing.T) {
	r := newRig(t)
	free := cellsLeft(r.a)
	q := request("a", 10*second)
	acquire(t, r.a, q)
	r.advance(10 * second)
	if _, err := r.a.Acquire(t.Context(), q); !errors.Is(err, driver.ErrLost) {
		t.Errorf("err = %v", err)
	}
	if n := inspect(t, r.b, "a").Len(); n != 0 {
		t.Errorf("%d requests are left", n)
	}
	q.Uncertain = true
	if err := r.a.Release(t.Context(), q); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	eventually(t, "no record of it is left, and its cell is free", func() bool {
		r.a.mu.Lock()
		defer r.a.mu.Unlock()
		return len(r.a.requests) == 0 && cellsLeft(r.a) == free
	})
}

// cellsLeft returns how many cells no request of the client has.
func cellsLeft(b *Backend) int {
	b.session.mu.Lock()
	defer b.session.mu.Unlock()
	return len(b.session.free)
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

// A request is sent again while it is renewed. The call waits for the renewal, and meanwhile has no
// lock that the renewal may need.
func TestAcquireBesideARenewal(t *testing.T) {
	r := newRig(t)
	held := request("a", long)
	g := acquire(t, r.a, held)
	resume := r.as.stop("arm", 1, func() error { return renew(r.a, held) })
	again := make(chan error, 1)
	go func() {
		g2, err := r.a.Acquire(t.Context(), held)
		if err == nil && g2.Token != g.Token {
			err = fmt.Errorf("its token is %d, and was %d", g2.Token, g.Token)
		}
		again <- err
	}()
	time.Sleep(50 * time.Millisecond) // until it waits for the renewal
	read := make(chan struct{})
	go func() {
		r.a.read(slot("a"))
		close(read)
	}()
	select {
	case <-read:
	case <-time.After(5 * time.Second):
		t.Error("no state can be read until the renewal ends")
	}
	if err := resume(); err != nil {
		t.Errorf("the renewal: %v", err)
	}
	if err := answer(t, again); err != nil {
		t.Errorf("the second Acquire: %v", err)
	}
}

// An Acquire that ends before its request was in the queue says nothing about another Acquire of
// the same request: the grant of that one is released.
func TestReleaseAfterOneOfTwoAcquires(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	busy := b.updating[slot("a")%len(b.updating)]
	busy <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	call := func(ctx context.Context, done chan<- error) {
		_, err := b.Acquire(ctx, r)
		done <- err
	}
	go call(ctx, first)
	eventually(t, "the first call", func() bool { return b.own(r.ID) != nil })
	go call(t.Context(), second)
	time.Sleep(50 * time.Millisecond) // until it has found the request
	cancel()
	if err := answer(t, first); !errors.Is(err, context.Canceled) {
		t.Errorf("the first call: %v", err)
	}
	<-busy
	if err := answer(t, second); err != nil {
		t.Fatal(err)
	}
	release(t, b, r)
	if n := inspect(t, c, "a").Len(); n != 0 {
		t.Errorf("%d requests stand after the release", n)
	}
}

// A request whose Acquire failed, since its state could not be read, can be sent again: it waits,
// and the earlier failure is not its answer.
func TestAcquireAgainAfterAFailure(t *testing.T) {
	b := openTest(t, t.TempDir())
	acquire(t, b, request("a", long))
	r := request("a", long)
	first := background(t, b, r)
	waiting := func() (w *waitingSlot) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.waiting[slot("a")]
	}
	eventually(t, "the request waits", func() bool { return waiting() != nil })
	b.failAll(waiting(), syscall.EIO)
	if err := answer(t, first); !errors.Is(err, syscall.EIO) {
		t.Errorf("the first call: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Acquire(ctx, r); !driver.HasWaited(err) {
		t.Errorf("the second call: %v", err)
	}
	release(t, b, r)
}

// A Fixed request whose Acquire failed, and which was granted since, does not outlive its client:
// its caller does not know of that hold.
func TestFixedThatFailedEndsWithClose(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), openTest(t, dir)
	held, r := request("a", long), fixed("a", long)
	acquire(t, c, held)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.Acquire(ctx, r); !driver.HasWaited(err) {
		t.Fatal(err)
	}
	release(t, c, held)
	if h := inspect(t, c, "a").Holders(); len(h) != 1 || h[0].ID != r.ID {
		t.Fatalf("after the release: %+v", h)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if n := inspect(t, c, "a").Len(); n != 0 {
		t.Errorf("%d requests stand after Close", n)
	}
}
