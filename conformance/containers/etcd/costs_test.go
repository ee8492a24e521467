package etcd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/internal/size"
)

// TestEtcdCosts counts the calls of clients.
func TestEtcdCosts(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	for _, f := range []struct {
		name string
		run  func(*testing.T, *service.Server)
	}{
		{"round trips", etcdRoundTrips},
		{"hand-offs", etcdHandOffs},
		{"waiting", etcdIdleWait},
		{"holding", etcdHolding},
		{"a TTL that the server raises", etcdRaisedTTL},
	} {
		t.Run(f.name, func(t *testing.T) {
			service.Watch(t, s)
			f.run(t, s)
		})
	}
}

// prompted runs rounds of a test that can pass only if each call is sent once, until one passes. f
// gets the number of the round, and returns an error, and whether the calls were answered promptly:
// an error counts only then.
func prompted(t *testing.T, f func(round int) (prompt bool, wrong error)) {
	t.Helper()
	const most = 5
	for round := range most {
		prompt, wrong := f(round)
		if wrong == nil {
			return
		}
		if prompt || round == most-1 {
			t.Errorf("round %d, answered promptly %t: %v", round, prompt, wrong)
			return
		}
		t.Logf("round %d, with answers that were late: %v", round, wrong)
	}
}

// etcdRoundTrips: Lock is one, Unlock is one, re-entry none. Lock and Unlock of a fixed lease are
// two each, since it has an etcd lease of its own.
func etcdRoundTrips(t *testing.T, s *service.Server) {
	prompted(t, func(round int) (bool, error) {
		b := etcdSideOf(t, s)
		wrong := etcdTripsOf(t, s, b, fmt.Sprint("trips/", round))
		return b.rpcs.prompted(), wrong
	})
}

// etcdTripsOf counts the round trips of a client, on names with the prefix, and returns an error if
// their number is wrong.
func etcdTripsOf(t *testing.T, s *service.Server, b *etcdSide, name string) error {
	const rounds = 50
	c := steps.ClientOf(t, b, dlock.TTL(10*time.Minute))
	m := c.Mutex(name)
	var wrong []error
	unlocked := func(l *dlock.Lease, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // re-entry is a counter
			again, err := m.Lock(l.Context(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	unlocked(m.Lock(await.Context(t))) // grants a lease, and watches for notices of breaks
	await.That(t, "it watches for notices", func() bool { return b.rpcs.counts()["Notices"] == 2 })
	const slack = 2
	costs := func(what string, txns, others int64, f func()) {
		t.Helper()
		before := b.rpcs.counts()
		for range rounds {
			f()
		}
		sent := b.rpcs.since(before)
		t.Logf("%s, %d times: %v", what, rounds, sent)
		if n := sent["Txn"]; n < txns*rounds || n > txns*rounds+slack {
			wrong = append(wrong, fmt.Errorf("%s made %d transactions in %d rounds; want %d", what, n, rounds, txns*rounds))
		}
		// the last call may be sent in the background
		if n := total(sent) - sent["Txn"]; n < others*rounds-slack || n > others*rounds+slack {
			wrong = append(wrong, fmt.Errorf("%s made %d other calls in %d rounds; want %d", what, n, rounds, others*rounds))
		}
	}
	costs("Lock, re-entry and Unlock", 2, 0, func() { unlocked(m.Lock(await.Context(t))) })
	costs("TryLock, re-entry and Unlock", 2, 0, func() { unlocked(m.TryLock(t.Context())) })
	fixed := c.Mutex(name, dlock.FixedLease(time.Minute))
	costs("Lock and Unlock of a fixed lease", 2, 2, func() { unlocked(fixed.Lock(await.Context(t))) })
	r := c.RWMutex(name + "/shared")
	first, err := r.Read().Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	costs("Lock and Unlock beside a reader", 2, 0, func() {
		l, err := r.Read().Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	costs("TryLock of a held lock", 1, 0, func() {
		if _, err := r.Write().TryLock(t.Context()); err == nil {
			t.Fatal("it is held")
		}
	})
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	held, err := steps.ClientOf(t, etcdSideOf(t, s), dlock.TTL(10*time.Minute)).Mutex(name + "/joined").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	join := dlock.WithOwner(t.Context(), held.Owner())
	costs("A join, which reads first, and its Unlock", 2, 1, func() {
		l, err := c.Mutex(name + "/joined").Lock(join)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	return errors.Join(wrong...)
}

// etcdHandOffs: a hand-off is one transaction of the client that releases the lock, and no call of
// the client that gets it, however many wait.
func etcdHandOffs(t *testing.T, s *service.Server) {
	probe := etcdSideOf(t, s)
	for _, waiters := range []int{2, 16, 128} {
		for _, clients := range []int{1, 4} {
			prompted(t, func(round int) (bool, error) {
				return etcdHandsOf(t, s, probe, fmt.Sprint("hands/", waiters, "/", clients, "/", round), waiters, clients)
			})
		}
	}
}

// etcdHandsOf lets clients hand a lock on while a number of waiters wait, and returns an error if
// the number of their calls is wrong.
func etcdHandsOf(t *testing.T, s *service.Server, probe *etcdSide, name string, waiters, clients int) (prompt bool, wrong error) {
	const hands, abreast = 20, 16 // few at a time, so that no transaction is queued for long
	var sides []*etcdSide
	var cs []*dlock.Client
	for range clients {
		b := etcdSideOf(t, s)
		sides, cs = append(sides, b), append(cs, steps.ClientOf(t, b, dlock.TTL(10*time.Minute)))
	}
	held, err := cs[0].Mutex(name).Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan *dlock.Lease)
	var wg sync.WaitGroup
	for i := range waiters + hands {
		wg.Go(func() {
			l, err := cs[i%clients].Mutex(name).Lock(ctx)
			if err == nil {
				got <- l
			} else if ctx.Err() == nil {
				t.Errorf("Lock: %v", err)
			}
		})
		if n := i + 1; n%abreast == 0 || n == waiters+hands {
			await.That(t, "all wait", func() bool { return steps.Queue(t, probe, name).Len() == 1+n })
		}
	}
	await.That(t, "all clients watch the name", func() bool {
		return !slices.ContainsFunc(sides, func(b *etcdSide) bool { return b.rpcs.watches() == 0 || b.rpcs.counts()["Range"] == 0 })
	})
	start := time.Now()
	var before []map[string]int64
	for _, b := range sides {
		before = append(before, b.rpcs.counts())
	}
	for range hands {
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		held = await.From(t, got)
	}
	sent := map[string]int64{}
	for i, b := range sides {
		for method, n := range b.rpcs.since(before[i]) {
			sent[method] += n
		}
	}
	t.Logf("%d waiters of %d clients, %d hand-offs: %v", waiters, clients, hands, sent)
	prompt = !slices.ContainsFunc(sides, func(b *etcdSide) bool { return !b.rpcs.prompted() })
	if n := sent["Txn"]; n < hands || n > hands+2 {
		wrong = fmt.Errorf("%d waiters: %d hand-offs made %d transactions", waiters, hands, n)
	}
	// each second a client requests progress on its stream, each 3 s it checks whether the member
	// lags
	took := time.Since(start)
	streams, reads := int64(clients)*int64(took/time.Second+1), int64(clients)*int64(took/(3*time.Second)+1)
	if sent["Watch"] > streams || sent["Range"] > reads || total(sent) > sent["Txn"]+sent["Watch"]+sent["Range"] {
		wrong = errors.Join(wrong, fmt.Errorf("%d waiters: %d hand-offs in %s made other calls: %v", waiters, hands, took, sent))
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() {
		for l := range got {
			l.Unlock(context.Background())
		}
	}()
	cancel()
	await.All(t, &wg)
	close(got)
	for i := range cs {
		cs[i].Close()
		sides[i].Close()
	}
	return prompt, wrong
}

// fewer waits until there are at most that many: calls under way have some of their own.
func fewer(t *testing.T, what string, most int, count func() int) {
	t.Helper()
	n := count()
	for end := time.Now().Add(15 * time.Second); n > most && time.Now().Before(end); n = count() {
		<-time.After(20 * time.Millisecond)
	}
	if n > most {
		t.Errorf("there are %d %s; want %d at most", n, what, most)
	}
}

// etcdIdleWait: waiters cost a client only the calls that keep its leases alive; none has a
// goroutine or a connection of its own.
func etcdIdleWait(t *testing.T, s *service.Server) {
	const names, each, ttl, span = 8, 16, 12 * time.Second, 10 * time.Second
	holder, b := etcdSideOf(t, s), etcdSideOf(t, s)
	h, c := steps.ClientOf(t, holder, dlock.TTL(10*time.Minute)), steps.ClientOf(t, b, dlock.TTL(ttl))
	if l, err := c.Mutex("idle/warm").Lock(await.Context(t)); err != nil || l.Unlock(t.Context()) != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range names {
		name := fmt.Sprint("idle/", i)
		if _, err := h.Mutex(name).Lock(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		for range each {
			wg.Go(func() {
				if _, err := c.Mutex(name).Lock(ctx); err == nil {
					t.Error("a waiter was granted")
				}
			})
		}
		await.That(t, "all wait", func() bool { return steps.Queue(t, holder, name).Len() == 1+each })
	}
	await.That(t, "it watches all names", func() bool { return b.rpcs.watches() >= names })
	before, start := b.rpcs.counts(), time.Now()
	<-time.After(span)
	took, sent := time.Since(start), b.rpcs.since(before)
	t.Logf("%d waiters for %d names, for %s: %v, %d connections", names*each, names, took, sent, b.proxy.Counts().Open)
	periods := int64(took/(ttl/3)) + 2
	if !b.rpcs.prompted() { // a call whose answer takes long is sent again
		periods *= 2
	}
	for method, n := range sent {
		switch method {
		case "LeaseKeepAlive", "LeaseTimeToLive", "Range": // the proofs of one lease
			most := periods
			if method == "Range" { // and the reads of the cluster's revision
				most += int64(took/(3*time.Second)) + 1
			}
			if n > most {
				t.Errorf("%d times %s in %s; want %d at most", n, method, took, most)
			}
		case "Watch": // requests for progress, on the one stream
			if n > int64(took/time.Second)+1 {
				t.Errorf("%d messages on the stream of watches in %s", n, took)
			}
		default:
			t.Errorf("%d times %s while nothing happens", n, method)
		}
	}
	if sent["LeaseKeepAlive"] == 0 {
		t.Error("their lease was not kept alive")
	}
	fewer(t, fmt.Sprintf("goroutines of %d waiters more than one each, the test's", names*each), 40, func() int { return runtime.NumGoroutine() - goroutines - names*each })
	if n := b.proxy.Counts().Open; n > 2 {
		t.Errorf("%d waiters have %d connections", names*each, n)
	}
	cancel()
	await.All(t, &wg)
}

// etcdHolding: many leases of dlock share a few of etcd's, each kept alive once in TTL/3, without a
// goroutine of its own.
func etcdHolding(t *testing.T, s *service.Server) {
	many, ttl := size.Longer(1000), 15*time.Second
	b := etcdSideOf(t, s)
	c := steps.ClientOf(t, b, dlock.TTL(ttl))
	if l, err := c.Mutex("holding/warm").Lock(await.Context(t)); err != nil || l.Unlock(t.Context()) != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	leases := steps.HoldMany(t, c, many)
	<-time.After(ttl / 3) // until newer leases are renewed together with the others
	before, start := b.rpcs.counts(), time.Now()
	<-time.After(2 * ttl / 3)
	took, sent := time.Since(start), b.rpcs.since(before)
	t.Logf("%d leases: %v in %s; %d goroutines more", many, sent, took, runtime.NumGoroutine()-goroutines)
	// a few etcd leases; a call whose answer takes long is sent again
	most := 20 * (int64(took/(ttl/3)) + 1)
	if n := sent["LeaseKeepAlive"]; n < int64(many/1000) || n > most {
		t.Errorf("%d leases made %d keep-alives in %s", many, n, took)
	}
	if n := total(sent); n > 3*most {
		t.Errorf("%d leases made the calls %v in %s", many, sent, took)
	}
	fewer(t, fmt.Sprintf("goroutines of %d leases", many), 100, func() int { return runtime.NumGoroutine() - goroutines })
	// one watch and one read for all leases together
	if n := b.rpcs.counts()["Notices"]; n != 2 {
		t.Errorf("%d leases made %d calls for notices of breaks", many, n)
	}
	if n := sent["Watch"]; n > 0 {
		t.Errorf("%d leases, without a waiter, have sent %d messages on the stream of watches", many, n)
	}
	steps.MustLive(t, leases)
	var wg sync.WaitGroup
	var next atomic.Int64
	next.Store(int64(many))
	for range 64 {
		wg.Go(func() {
			for i := next.Add(-1); i >= 0; i = next.Add(-1) {
				leases[i].Unlock(t.Context())
			}
		})
	}
	await.All(t, &wg)
}

// etcdRaisedTTL: a server may grant a longer TTL than requested, which the grant then reports.
func etcdRaisedTTL(t *testing.T, _ *service.Server) {
	const least = 6 * time.Second // half of three election timeouts of eighty heartbeats
	s := service.StartOwn(t, Etcd.With("--election-timeout=4000"))
	b := etcdSideOf(t, s)
	for _, fixed := range []bool{false, true} {
		r := steps.Asked(b, fmt.Sprint("raised/", fixed), etcdTTL)
		r.Fixed = fixed
		if g := steps.Acquired(t, b, r); g.TTL != least {
			t.Errorf("fixed %t: asked for %s it has %s, and the server gives %s", fixed, etcdTTL, g.TTL, least)
		}
		steps.Released(t, b, r)
	}
}
