//go:build linux || darwin

package file

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// If the guard of the queue is killed with the holder, or is stopped, another client detects that
// the holder is dead.
func TestKilledHolderFreesAtOnceWithoutAGuard(t *testing.T) {
	for _, stop := range []bool{false, true} {
		dir := t.TempDir()
		b, c, guard := openTest(t, dir), start(t, dir), start(t, dir)
		c.do("acquire a 1h")
		ttl := time.Hour
		if stop {
			ttl = 2 * time.Second
		}
		guard.send("acquire a %s", ttl)
		eventually(t, "the guard waits", func() bool { return inspect(t, b, "a").Len() == 2 })
		done := background(t, b, request("a", time.Hour))
		eventually(t, "it watches", func() bool {
			s, err := b.read(slot("a"))
			return err == nil && s.queue("a").guard() != 0 && s.queue("a").guard() != b.session.id
		})
		if stop {
			guard.signal(syscall.SIGSTOP)
			guard.stopped()
		} else {
			guard.kill()
		}
		c.kill()
		if err := answer(t, done); err != nil { // after the guard's TTL, where that is stopped
			t.Fatal(err)
		}
	}
}

// A hand-off wakes the next two waiters, however many there are. The others check as rarely as if
// nothing happened. If each client checked after each hand-off, the costs would grow with the
// square.
func TestHandOffWakesFewAmongManyClients(t *testing.T) {
	const handOffs, each = 60, 5
	for _, clients := range []int{20, 140} {
		dir := t.TempDir()
		var checks atomic.Int64
		c := testConfig()
		c.at = func(step string) {
			if step == "check" {
				checks.Add(1)
			}
		}
		bs, turns, waiting := make([]*Backend, clients), make([]<-chan error, clients), make([]driver.Request, clients)
		for i := range bs {
			bs[i] = openTestConfig(t, dir, c)
		}
		held := request("a", long)
		acquire(t, bs[0], held)
		enter := func(i int) {
			waiting[i] = request("a", long)
			turns[i] = background(t, bs[i], waiting[i])
		}
		for i := range bs {
			enter(i)
		}
		begun, used := time.Now(), cpu(t)
		checks.Store(0)
		release(t, bs[0], held)
		for k := range handOffs {
			i := k % clients
			if err := answer(t, turns[i]); err != nil {
				t.Fatal(err)
			}
			r := waiting[i]
			enter(i)
			release(t, bs[i], r)
		}
		n, elapsed := checks.Load(), time.Since(begun)
		t.Logf("%d clients: %.1f checks and %v of CPU a hand-off, in %v", clients, float64(n)/handOffs, (cpu(t)-used)/handOffs, elapsed)
		idle := int64(clients) * int64(1+elapsed/(fallback*tick)) // what they check anyway
		guards := int64(elapsed / tick)
		if n > handOffs*each+idle+guards {
			t.Errorf("among %d clients %d checks at %d hand-offs in %v", clients, n, handOffs, elapsed)
		}
	}
}

// Names to which nothing happens are not checked at every tick.
func TestIdleWaitersOfManyNames(t *testing.T) {
	const names = 1000
	dir := t.TempDir()
	a := openTest(t, dir)
	var checks, passes atomic.Int64
	c := testConfig()
	c.at = func(step string) {
		if step == "check" {
			checks.Add(1)
		}
	}
	c.clock = func() (int64, error) { passes.Add(1); return monotonic() }
	b := openTestConfig(t, dir, c)
	var all sync.WaitGroup
	for i := range names {
		acquire(t, a, request(fmt.Sprint(i), long))
		all.Go(func() { b.Acquire(t.Context(), request(fmt.Sprint(i), long)) })
	}
	defer all.Wait()
	defer b.Close()
	eventually(t, "all are bootCheck after", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		n := 0
		for _, w := range b.waiting {
			n += len(w.requests)
		}
		return n == names
	})
	// A busy machine makes the first checks late: they do not count as costs of idle waiters.
	for try := 1; ; try++ {
		time.Sleep(100 * time.Millisecond)
		checks.Store(0)
		passes.Store(0)
		begun, used := time.Now(), cpu(t)
		time.Sleep(2 * time.Second)
		s := time.Since(begun).Seconds()
		checked, passed := float64(checks.Load())/s, float64(passes.Load())/s
		t.Logf("with %d names: %.0f checks, %.0f readings of the clock and %.1f ms of CPU a second", names, checked,
			passed, float64((cpu(t)-used).Milliseconds())/s)
		if checked > names/10 && try < 3 {
			continue
		}
		if checked > names/10 {
			t.Errorf("%.0f checks a second at %d names to which nothing happens", checked, names)
		}
		if passed > 3*float64(time.Second/tick) {
			t.Errorf("%.0f readings of the clock a second", passed)
		}
		return
	}
}
