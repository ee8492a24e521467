package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/internal/size"
)

// TestZooKeeperCosts counts.
func TestZooKeeperCosts(t *testing.T) {
	s := service.StartOwn(t, ZooKeeper)
	t.Run("round trips", func(t *testing.T) { zkRoundTrips(t, s) })
	for _, n := range []int{2, 16, 128} {
		t.Run(fmt.Sprint("hand-offs of ", n), func(t *testing.T) { zkHandsOver(t, s, n) })
	}
	t.Run("many at once", func(t *testing.T) { zkManyAtOnce(t, s) })
	t.Run("holding", func(t *testing.T) { zkHolding(t, s) })
	t.Run("break", func(t *testing.T) { zkBreakCosts(t, s) })
}

// zkBreakCosts: Break reads the hold, and not the waiters, however many there are.
func zkBreakCosts(t *testing.T, s *service.Server) {
	const name, waiters = "costs-of-break", 500
	c, operator := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", 10*time.Minute)
	l := steps.MustLock(t, c.Mutex(name))
	mustUnlock(t, steps.MustLock(t, operator.Mutex(name+"-warm")))
	for range waiters {
		steps.Try(t, c.Mutex(name))
	}
	await.That(t, "all waiters watch", func() bool { return watchesOf(t, s) == waiters })
	before := counter(t, s, "zk_packets_received")
	if err := operator.Break(await.Bounded(t, 30*time.Second), name, l.Token()); err != nil {
		t.Fatal(err)
	}
	n := counter(t, s, "zk_packets_received") - before
	t.Logf("Break of a hold with %d waiters: the server got %d packets", waiters, n)
	if n > 100 { // a dozen, and other packets of the clients
		t.Errorf("Break of a hold with %d waiters: the server got %d packets", waiters, n)
	}
}

// counter returns one of the server's own counters.
func counter(t service.T, s *service.Server, name string) (n int64) {
	t.Helper()
	for line := range strings.Lines(four(t, s, "mntr")) {
		if key, v, _ := strings.Cut(line, "\t"); key == name {
			var f float64
			if _, err := fmt.Sscan(v, &f); err != nil {
				t.Fatalf("%s is %q", name, v)
			}
			return int64(f)
		}
	}
	t.Fatalf("the server does not count %s", name)
	return 0
}

// zkRoundTrips: Lock and Unlock are one each once the name is in use, re-entry none; a new name
// costs three, and so does a TryLock that fails.
func zkRoundTrips(t *testing.T, s *service.Server) {
	const rounds = 50
	c, other := zkOpen(t, s.URL, "", 10*time.Minute), zkOpen(t, s.URL, "", 10*time.Minute)
	keep := treeOf(t, s)
	count := func(what string, most int64, f func(i int)) {
		t.Helper()
		before := c.p.Counts().RoundTrips
		for i := range rounds {
			f(i)
		}
		n := c.p.Counts().RoundTrips - before
		t.Logf("%s: %d round trips in %d rounds", what, n, rounds)
		if n > most*rounds+2 { // a busy machine may have repeated two
			t.Errorf("%s: %d round trips in %d rounds; want %d", what, n, rounds, most*rounds)
		}
	}
	keep.make(zkQueue("warm")+"/foreign", 0) // the directory stays
	keep.Delete(zkQueue("warm")+"/foreign", -1)
	m := c.Mutex("warm")
	mustUnlock(t, steps.MustLock(t, m))
	var l *dlock.Lease
	count("Lock and Unlock", 2, func(int) {
		l = steps.MustLock(t, m)
		for range 3 {
			again, err := m.Lock(l.Context(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, again)
		}
		mustUnlock(t, l)
	})
	count("TryLock and Unlock", 2, func(int) {
		l, err := m.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, l)
	})
	count("Lock of a new name and Unlock", 3+1, func(i int) { mustUnlock(t, steps.MustLock(t, c.Mutex(fmt.Sprint("cold-", i)))) })
	held := steps.MustLock(t, other.Mutex("warm"))
	count("TryLock of a held name", 3, func(int) {
		if _, err := m.TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
			t.Fatal(err)
		}
	})
	// The index's directories stay. One of them is listed beside the call that keeps: the two make
	// one round trip or two.
	for i := range 256 {
		keep.make(fmt.Sprintf("%s%02x/foreign", keptIndex, i), 0)
	}
	fixed := func(int) { mustUnlock(t, steps.MustLock(t, c.Mutex("fixed", dlock.FixedLease(10*time.Minute)))) }
	keep.make(zkQueue("fixed")+"/foreign", 0)
	fixed(0)
	count("a fixed lease and its Unlock", 1+2+2, fixed)
	count("Lock of a new name and UnlockAfter", 3+1+3+2, func(i int) {
		if err := steps.MustLock(t, c.Mutex(fmt.Sprint("cold-kept-", i))).UnlockAfter(t.Context(), 10*time.Minute); err != nil {
			t.Fatal(err)
		}
	})
	join := dlock.WithOwner(t.Context(), held.Owner())
	count("a join and its Unlock", 3+1, func(int) {
		l, err := m.Lock(join)
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, l)
	})
	mustUnlock(t, held)
}

// zkHandsOver: each hand-off is one event of the server's, and one round trip beside that of
// Unlock, however many wait.
func zkHandsOver(t *testing.T, s *service.Server, waiters int) {
	name := fmt.Sprint("hand-offs-", waiters)
	c, z := zkOpen(t, s.URL, "", 10*time.Minute), treeOf(t, s)
	held := steps.MustLock(t, c.Mutex(name))
	queue := make([]*steps.Attempt, waiters)
	for i := range queue {
		queue[i] = steps.Try(t, c.Mutex(name))
		if i%16 == 15 || i == waiters-1 {
			z.await(name, i+2)
		}
	}
	await.That(t, "all waiters watch", func() bool { return watchesOf(t, s) == waiters })
	const onDelete, onChildren, onData = "zk_sum_node_deleted_watch_count", "zk_sum_node_children_watch_count", "zk_sum_node_changed_watch_count"
	events := func() [3]int64 {
		return [3]int64{counter(t, s, onDelete), counter(t, s, onChildren), counter(t, s, onData)}
	}
	before, calls := events(), c.p.Counts().RoundTrips
	granted := make(chan *steps.Attempt)
	for _, a := range queue { // they may have come in another order than they were started
		go func() { <-a.Done; granted <- a }()
	}
	for range queue {
		mustUnlock(t, held)
		a := await.From(t, granted)
		held = a.Got("Lock", time.Now(), time.Minute)
	}
	n := c.p.Counts().RoundTrips - calls
	mustUnlock(t, held)
	t.Logf("%d hand-offs: %d round trips", waiters, n)
	if n > int64(2*waiters)+2 {
		t.Errorf("%d hand-offs made %d round trips; want %d", waiters, n, 2*waiters)
	}
	after := events()
	if got := after[0] - before[0]; got != int64(waiters) || after[1] != before[1] || after[2] != before[2] {
		t.Errorf("%d hand-offs made %d events of deleted nodes; all counts were %v, and are %v", waiters, got, before, after)
	}
}

// zkManyAtOnce: the transactions of hundreds of goroutines that lock different names are sent
// together, on one connection. If one of them is refused, since its directory does not exist yet,
// the others are executed all the same, and once each.
func zkManyAtOnce(t *testing.T, s *service.Server) {
	const goroutines = 256
	c, other, z := zkOpen(t, s.URL, "", 10*time.Minute), zkOpen(t, s.URL, "", 10*time.Minute), treeOf(t, s)
	all := func(what string, f func(i int)) (packets int64) {
		before := counter(t, s, "zk_packets_received")
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() { f(i) })
		}
		await.All(t, &wg)
		packets = counter(t, s, "zk_packets_received") - before
		t.Logf("%s: %d goroutines sent %d packets", what, goroutines, packets)
		return packets
	}
	name := func(i int) string { return fmt.Sprint("many-", i) }
	// whose directory stays; those of the others are new, and go when they are empty
	stays := func(i int) bool { return i%8 > 0 }
	all("directories", func(i int) {
		if stays(i) {
			z.make(zkQueue(name(i))+"/foreign", 0)
			z.Delete(zkQueue(name(i))+"/foreign", -1)
		}
	})
	var leases [goroutines]*dlock.Lease
	lock := func(i int) { leases[i] = steps.MustLock(t, c.Mutex(name(i))) }
	unlock := func(i int) { mustUnlock(t, leases[i]) }
	all("Lock, where some names are new", lock)
	if t.Failed() {
		return
	}
	var tokens [goroutines]dlock.Token
	all("TryLock of a held name", func(i int) {
		tokens[i] = leases[i].Token()
		if stands := len(z.children(zkQueue(name(i)))); stands != 1 {
			t.Errorf("there are %d nodes under a name with one holder", stands)
		}
		if _, err := other.Mutex(name(i)).TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("TryLock of a held name: %v", err)
		}
	})
	all("Unlock", unlock)
	most := int64(goroutines) // half of what they would send alone
	for try := 1; ; try++ {   // on a busy machine they do not come at once
		n := all("Lock", func(i int) {
			if !stays(i) {
				return
			}
			lock(i)
			if token := leases[i].Token(); token <= tokens[i] {
				t.Errorf("a token of %d follows one of %d", token, tokens[i])
			} else {
				tokens[i] = token
			}
		})
		n += all("Unlock", func(i int) {
			if stays(i) {
				unlock(i)
			}
		})
		if n <= most {
			break
		}
		if try == 5 {
			t.Errorf("%d goroutines sent %d packets to lock and unlock; want %d at most", goroutines, n, most)
			break
		}
	}
	await.That(t, "nothing is left of the released locks", func() bool {
		left := 0
		for i := range goroutines {
			left += len(z.children(zkQueue(name(i))))
		}
		return left == 0
	})
	if sessions := len(z.children("/dlock/sessions")); sessions > 4 {
		t.Errorf("there are %d sessions", sessions)
	}
}

// zkHolding: many leases cost what one costs, a write each third of the TTL and the session's
// pings, for each session that they need.
func zkHolding(t *testing.T, s *service.Server) {
	leases, ttl := size.Longer(1000), 9*time.Second
	sessions := 1 + leases*len(zkQueue("holding%2F1000")+"/w:00112233445566778899aabbccddeeff:0:0000000000")/(0xfffff/2)
	runtime.GC()
	goroutines := runtime.NumGoroutine()
	c := zkOpen(t, s.URL, "", ttl)
	one := steps.MustLock(t, c.Mutex("one"))
	alone := runtime.NumGoroutine() - goroutines
	all := steps.HoldMany(t, c.Client, leases)
	await.That(t, "the goroutines of the calls are gone", func() bool { return runtime.NumGoroutine()-goroutines <= sessions*alone+5 })
	before, r := c.p.Counts().RoundTrips, c.p.Record()
	start := time.Now()
	<-time.After(ttl)
	took := time.Since(start)
	n := c.p.Counts().RoundTrips - before
	bytes := 0
	for _, sent := range r.End() {
		bytes += len(sent)
	}
	periods := int64(took/(ttl/3)) + 1
	t.Logf("%d leases for %s: %d round trips, %d bytes; %d goroutines, with one lease %d", leases, took.Round(time.Millisecond), n, bytes, runtime.NumGoroutine()-goroutines, alone)
	// a write, pings in between; the rest is for a busy machine
	if n > 4*periods*int64(sessions) {
		t.Errorf("%d leases in %d sessions made %d round trips in %s; want a write each third of the TTL, and pings", leases, sessions, n, took)
	}
	steps.MustLive(t, append(all, one))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := one.Unlock(ctx); err != nil {
		t.Error(err)
	}
}
