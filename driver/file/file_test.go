//go:build linux

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var (
	_ driver.Backend = (*Backend)(nil)
	_ driver.Capable = (*Backend)(nil)
	_ driver.Breaker = (*Backend)(nil)
	_ driver.Lister  = (*Backend)(nil)
)

const (
	boot1 = "00000000-0000-0000-0000-000000000001"
	boot2 = "00000000-0000-0000-0000-000000000002"
	long  = time.Minute // a TTL that no test waits for
)

func testConfig() config {
	return config{boot: boot1, magic: magic, clock: monotonic, tick: tick, at: func(string) {}}
}

func openTest(t testing.TB, dir string) *Backend { return openTestConfig(t, dir, testConfig()) }

func openTestConfig(t testing.TB, dir string, c config) *Backend {
	t.Helper()
	b, err := newBackend(dir, "", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func request(name string, ttl time.Duration) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, Client: driver.NewID(), TTL: ttl, Label: "test", Wait: true}
}

func join(r driver.Request, g driver.Grant) driver.Request {
	j := r
	j.ID, j.Token = driver.NewID(), g.Token
	return j
}

func acquire(t testing.TB, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	g, err := b.Acquire(ctx, r)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

func release(t testing.TB, b *Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func inspect(t testing.TB, b *Backend, name string) driver.Queue {
	t.Helper()
	q, err := b.Inspect(t.Context(), name)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return q
}

func renew(b *Backend, r driver.Request) error {
	return b.Renew(context.Background(), []driver.Request{r})[0].Err
}

// eventually polls for what another goroutine or process brings about.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// background acquires in a goroutine, and returns once the request stands in the queue.
func background(t testing.TB, b *Backend, r driver.Request) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), r)
		done <- err
	}()
	eventually(t, "the request is in the queue", func() bool {
		s, err := b.read(slot(b.prefix + r.Name))
		return err == nil && s.ids(b.prefix + r.Name)[r.ID]
	})
	return done
}

// answer waits for what background promised.
func answer(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the request was never answered")
		return nil
	}
}

func states(t testing.TB, b *Backend) []string {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(b.table.path, "states"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

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
		t.Errorf("joining a hold that is over: %v", err)
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
		t.Fatal(err) // it stood in the queue
	}
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
		if err := answer(t, done); err == nil {
			release(t, b, middle)
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := answer(t, end); err != nil {
			t.Fatal(err)
		}
		release(t, a, last)
	}
}

// A grant by the client itself is told directly, one by another client by the bell; where there is
// none, the next look finds it.
func TestWaiterIsTold(t *testing.T) {
	for _, c := range []struct {
		name        string
		own, noBell bool
		tick        time.Duration
	}{
		{name: "directly", own: true, tick: time.Hour},
		{name: "by the bell", tick: time.Hour},
		{name: "by a look", noBell: true, tick: tick},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, set := t.TempDir(), testConfig()
			set.tick = c.tick
			a, b := openTest(t, dir), openTestConfig(t, dir, set)
			if c.own {
				a = b
			}
			if c.noBell {
				if err := os.Remove(filepath.Join(b.table.path, "bells", bellName(b.session.id))); err != nil {
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

// The poller itself may have to ring its bell: a pipe that is full must not stop it.
func TestRingingAFullBellDoesNotWait(t *testing.T) {
	b := openTest(t, t.TempDir())
	for range 1 << 15 { // more than a pipe takes
		b.table.ring(b.session.id, 0)
	}
	done := make(chan error, 1)
	go func() {
		b.session.ringSelf()
		done <- nil
	}()
	if err := answer(t, done); err != nil {
		t.Error(err)
	}
	acquire(t, b, request("a", long))
	r := request("a", 200*time.Millisecond)
	acquire(t, b, request("b", 200*time.Millisecond))
	r.Name = "b" // and it is still heard
	acquire(t, b, r)
}

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
				t.Errorf("%q does not come back", n)
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

func TestNamesOfOneSlotDoNotMeet(t *testing.T) {
	b := openTest(t, t.TempDir())
	first := "n0"
	var second string
	for i := 1; second == ""; i++ {
		if n := fmt.Sprintf("n%d", i); slot(n) == slot(first) {
			second = n
		}
	}
	r, s := request(first, long), request(second, long)
	acquire(t, b, r)
	acquire(t, b, s)
	release(t, b, r)
	if inspect(t, b, first).Len() != 0 || inspect(t, b, second).Len() != 1 {
		t.Error("names of one slot meet")
	}
	if err := renew(b, s); err != nil {
		t.Errorf("Renew after its slot changed: %v", err)
	}
}

func TestCloseFreesAndWakes(t *testing.T) {
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	r := request("a", long)
	acquire(t, a, r)
	own, theirs := background(t, a, request("a", long)), background(t, b, request("a", long))
	var closers sync.WaitGroup
	for range 2 {
		closers.Go(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closers.Wait()
	if err := answer(t, own); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("own waiter: %v", err)
	}
	if err := answer(t, theirs); err != nil {
		t.Errorf("their waiter: %v", err)
	}
	if err := renew(a, r); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Renew after Close: %v", err)
	}
	if _, err := a.Inspect(t.Context(), "a"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Inspect after Close: %v", err)
	}
	files, err := os.ReadDir(filepath.Join(b.table.path, "bells"))
	if err != nil || len(files) != 1 { // that of b
		t.Errorf("bells: %v, %v", files, err)
	}
}
