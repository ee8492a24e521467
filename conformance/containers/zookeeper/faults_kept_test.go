package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// keptMark is in each call that makes a kept node, and in no other. keptIndex is the path of their
// index.
const keptMark, keptIndex = `{"at":"`, "/dlock/locks/:kept/"

// TestZooKeeperKept has the faults of requests that outlive their session: fixed requests, and what
// UnlockAfter and OncePer leave.
func TestZooKeeperKept(t *testing.T) {
	s := service.StartOwn(t, ZooKeeper)
	for _, f := range []struct {
		what string
		test func(*testing.T, *service.Server)
	}{
		{"the client ends at every step", zkKeptCrash},
		{"a keep without a reply", zkKeptLost},
		{"an abandoned keep", zkKeptAbandoned},
		{"an abandoned keep, and the client closed", zkKeptClosed},
		{"a renewal without a reply", zkKeptRenewed},
		{"a renewal that is broken", zkKeptBroken},
		{"foreign nodes", zkKeptForeign},
		{"a renewal beside the release", zkKeptBeside},
		{"a keep beside the release", zkKeptReleased},
		{"the session is lost", zkKeptSession},
		{"a break after the session was lost", zkKeptNotified},
		{"waiting for it", zkKeptWaits},
		{"the other kind of lock", zkKeptConflict},
		{"a join of an expired hold", zkKeptJoin},
		{"names that are not used again", zkKeptSwept},
		{"shown and listed", zkKeptShown},
		{"a user's connection is closed", zkKeptConn},
	} {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			service.Watch(t, s)
			f.test(t, s)
		})
	}
}

// index returns the entries of the index for a request.
func (z zkTree) index(id driver.ID) (entries []string) {
	z.t.Helper()
	for _, e := range z.children(keptIndex + id.String()[:2]) {
		if strings.HasPrefix(e, id.String()) {
			entries = append(entries, e)
		}
	}
	return entries
}

// openIndex makes the directory of the index for a request, so that the first call that keeps it is
// executed.
func (z zkTree) openIndex(id driver.ID) {
	z.t.Helper()
	z.make(keptIndex+id.String()[:2]+"/foreign-"+id.String(), zk.FlagEphemeral)
}

// fixedRequest is a fixed request of the client.
func fixedRequest(b driver.Backend, name string, d time.Duration) driver.Request {
	r := steps.Asked(b, name, d)
	r.Fixed = true
	return r
}

// fixedJoin is a fixed request that joins a hold, as UnlockAfter sends it.
func fixedJoin(hold driver.Request, g driver.Grant, d time.Duration) driver.Request {
	r := hold
	r.ID, r.Token, r.TTL, r.Fixed = driver.NewID(), g.Token, d, true
	return r
}

// zkSide is a client of the driver that reaches the server through a proxy, and whose sessions are
// short.
func zkSide(t *testing.T, s *service.Server) (driver.Backend, *netfault.Proxy) {
	t.Helper()
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	b, err := zkBackendOf(await.Bounded(t, 30*time.Second), zkBehind(t, s.URL, p, ""), zkTTL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, p
}

// zkKeptCrash: from a certain message on nothing of a client reaches the server any more. A request
// that was kept by then lasts for its full time, any other goes with the session.
func zkKeptCrash(t *testing.T, s *service.Server) {
	const d = 4 * time.Second
	// die has the reply to the next keep, or to a packet with the text, lost, and all that follows
	die := func(t *testing.T, p *netfault.Proxy, text string, call func()) {
		t.Helper()
		drop := p.DropReply(text)
		p.Refuse()
		go call()
		await.Closed(t, "the drop", drop)
	}
	for _, c := range []struct {
		what string
		kept bool // until its time
		run  func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string)
	}{
		{"before the keep arrives", false, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			p.Forbid(keptMark)
			go steps.Acquire(t.Context(), b, fixedRequest(b, name, time.Minute))
			await.That(t, "the request stands", func() bool { return len(treeOf(t, s).children(zkQueue(name))) == 1 })
			p.Isolate()
		}},
		{"when the keep is executed", true, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			r := fixedRequest(b, name, d)
			treeOf(t, s).openIndex(r.ID)
			die(t, p, keptMark, func() { steps.Acquire(t.Context(), b, r) })
		}},
		{"when a fixed lease is granted", true, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			steps.Acquired(t, b, fixedRequest(b, name, d))
			p.Isolate()
		}},
		{"when a join is kept, without a reply", true, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			r := steps.Asked(b, name, zkTTL)
			g := steps.Acquired(t, b, r)
			j := fixedJoin(r, g, d)
			treeOf(t, s).openIndex(j.ID)
			die(t, p, keptMark, func() { steps.Acquire(t.Context(), b, j) })
		}},
		{"when a join is kept", true, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			r := steps.Asked(b, name, zkTTL)
			g := steps.Acquired(t, b, r)
			steps.Acquired(t, b, fixedJoin(r, g, d))
			p.Isolate()
		}},
		{"when its hold is released, without a reply", true, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			r := steps.Asked(b, name, zkTTL)
			g := steps.Acquired(t, b, r)
			steps.Acquired(t, b, fixedJoin(r, g, d))
			die(t, p, r.ID.String(), func() { b.Release(t.Context(), r) })
		}},
		{"when its hold is released", true, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			r := steps.Asked(b, name, zkTTL)
			g := steps.Acquired(t, b, r)
			steps.Acquired(t, b, fixedJoin(r, g, d))
			steps.Released(t, b, r)
			p.Isolate()
		}},
		{"when it is closed", true, func(t *testing.T, b driver.Backend, p *netfault.Proxy, name string) {
			steps.Acquired(t, b, fixedRequest(b, name, d))
			b.Close()
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			name := "crash-" + driver.NewID().String()
			b, p := zkSide(t, s)
			other := zkOpen(t, s.URL, "", time.Minute)
			warm := steps.Asked(b, name+"-warm", zkTTL) // the connection
			steps.Acquired(t, b, warm)
			steps.Released(t, b, warm)
			asked := time.Now()
			c.run(t, b, p, name)
			dead := time.Now()
			l := steps.Try(t, other.Mutex(name)).Got("Lock", dead, 40*time.Second)
			took := time.Since(dead)
			if early := time.Until(asked.Add(d)); c.kept && early > 0 {
				t.Errorf("the next was granted %s too early", early)
			}
			most := d + 10*time.Second
			if !c.kept {
				most = 30 * time.Second // for a session of some two; it was for a minute
			}
			if took > most {
				t.Errorf("the next was granted after %s; want %s at most", took, most)
			}
			mustUnlock(t, l)
			z := treeOf(t, s)
			z.await(name, 0)
		})
	}
}

// zkKeptLost: a keep that was executed is not made twice, and is released as a whole.
func zkKeptLost(t *testing.T, s *service.Server) {
	const name = "kept-lost"
	z := treeOf(t, s)
	b, p := zkSide(t, s)
	r := fixedRequest(b, name, time.Minute)
	z.openIndex(r.ID)
	drop := p.DropReply(keptMark)
	g := steps.Acquired(t, b, r)
	await.Closed(t, "the drop", drop)
	if n, e := len(z.children(zkQueue(name))), z.index(r.ID); n != 2 || len(e) != 1 {
		t.Errorf("there are %d nodes, and %q in the index; want 2, and 1", n, e)
	}
	if again := steps.Acquired(t, b, r); again.Token != g.Token || again.SentAt != g.SentAt {
		t.Errorf("granted %+v, and acquired again %+v", g, again)
	}
	drop = p.DropReply(r.ID.String())
	steps.Released(t, b, r)
	await.Closed(t, "the drop", drop)
	z.await(name, 0)
	if e := z.index(r.ID); len(e) > 0 {
		t.Errorf("%q stands in the index", e)
	}
}

// zkAbandonKeep has the keep of a request executed, its reply lost, and the request abandoned
// before the server can be reached again, which is when the result is called.
func zkAbandonKeep(t *testing.T, z zkTree, b driver.Backend, p *netfault.Proxy, r driver.Request) (back func()) {
	t.Helper()
	z.openIndex(r.ID)
	ctx, cancel := context.WithCancel(t.Context())
	drop := p.DropReply(keptMark)
	done := make(chan error, 1)
	for try := 0; ; try++ {
		back = p.Refuse()
		if try == 0 {
			go func() {
				_, err := steps.Acquire(ctx, b, r)
				done <- err
			}()
		}
		select {
		case <-drop:
		case <-time.After(5 * time.Second):
			if try < 5 { // on a busy machine the client may have hung up before
				back()
				<-time.After(50 * time.Millisecond)
				continue
			}
			t.Fatal("the drop did not happen")
		}
		break
	}
	cancel()
	if err := await.From(t, done); !errors.Is(err, context.Canceled) {
		t.Errorf("abandoned Acquire: %v", err)
	}
	return back
}

// zkKeptAbandoned: the kept node of an abandoned request is removed.
func zkKeptAbandoned(t *testing.T, s *service.Server) {
	const name = "kept-abandoned"
	z := treeOf(t, s)
	b, p := zkSide(t, s)
	r := fixedRequest(b, name, time.Hour)
	back := zkAbandonKeep(t, z, b, p, r)
	if n := len(z.index(r.ID)); n != 1 {
		t.Errorf("%d entries are in the index, want the one that was made", n)
	}
	back()
	z.await(name, 0)
	await.That(t, "nothing is left in the index", func() bool { return len(z.index(r.ID)) == 0 })
}

// zkKeptClosed: the kept node of an abandoned request is also removed if the client is closed
// before that.
func zkKeptClosed(t *testing.T, s *service.Server) {
	const name = "kept-closed"
	z := treeOf(t, s)
	b, p := zkSide(t, s)
	r := fixedRequest(b, name, time.Hour)
	back := zkAbandonKeep(t, z, b, p, r)
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	back()
	if err := await.From(t, closed); err != nil {
		t.Errorf("Close: %v", err)
	}
	z.await(name, 0)
	if e := z.index(r.ID); len(e) > 0 {
		t.Errorf("%q stands in the index", e)
	}
}

// zkKeptBroken: a renewal that was executed and then broken does not succeed.
func zkKeptBroken(t *testing.T, s *service.Server) {
	const name = "kept-broken"
	z := treeOf(t, s)
	b, p := zkSide(t, s)
	r := fixedRequest(b, name, time.Hour)
	steps.Acquired(t, b, r)
	back := p.Refuse()
	drop := p.DropReply(keptMark)
	renewed := make(chan error, 1)
	go func() { renewed <- b.Renew(t.Context(), []driver.Request{r})[0].Err }()
	await.Closed(t, "the drop", drop)
	for _, child := range z.children(zkQueue(name)) {
		if strings.HasSuffix(child, ":-000000002") {
			_, err := z.Set(zkQueue(name)+"/"+child, []byte("{}"), 0)
			mustZK(t, "break", err)
		}
	}
	back()
	if err := await.From(t, renewed); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a broken hold: %v", err)
	}
	if err := b.Release(await.Bounded(t, 30*time.Second), r); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	z.await(name, 0)
	await.That(t, "nothing is left in the index", func() bool { return len(z.index(r.ID)) == 0 })
}

// zkKeptForeign: foreign data in a kept node, or an impossible TTL, keeps no waiter busy.
func zkKeptForeign(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	for i, data := range []string{"", "x", `{"ttl_ms":9223372036854775807}`, `{"ttl_ms":-9223372036854775808}`} {
		name := fmt.Sprint("kept-foreign-", i)
		c := zkOpen(t, s.URL, "", 10*time.Minute)
		mustUnlock(t, steps.MustLock(t, c.Mutex(name)))
		at := fmt.Sprintf("%s/w:%s:0:%s:7:-000000001", zkQueue(name), driver.NewID(), driver.NewID())
		_, err := z.Create(at, []byte(data), 0, zk.WorldACL(zk.PermAll))
		mustZK(t, "create", err)
		a := steps.Try(t, c.Mutex(name))
		z.await(name, 2)
		<-time.After(300 * time.Millisecond) // it has listed and watches
		before := c.p.Counts().RoundTrips
		<-time.After(time.Second)
		if n := c.p.Counts().RoundTrips - before; n > 10 {
			t.Errorf("%q: the waiter made %d round trips in a second", data, n)
		}
		mustZK(t, "delete", z.Delete(at, -1))
		mustUnlock(t, a.Got("Lock", time.Now(), 30*time.Second))
	}
}

// zkKeptRenewed: a renewal begins the time of a fixed lease again, once, but not that of one that
// has expired or was broken.
func zkKeptRenewed(t *testing.T, s *service.Server) {
	const name, d = "kept-renewed", 3 * time.Second
	z, other := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	b, p := zkSide(t, s)
	r := fixedRequest(b, name, d)
	g := steps.Acquired(t, b, r)
	<-time.After(d / 2)
	drop := p.DropReply(keptMark)
	asked := time.Now()
	renewed := b.Renew(t.Context(), []driver.Request{r})[0]
	await.Closed(t, "the drop", drop)
	if renewed.Err != nil || renewed.TTL != d || renewed.SentAt.Before(asked) {
		t.Fatalf("Renew: %+v; it was called %s ago", renewed, time.Since(asked))
	}
	if n := len(z.children(zkQueue(name))); n != 2 {
		t.Errorf("there are %d nodes, want 2", n)
	}
	p.Isolate()
	l := steps.Try(t, other.Mutex(name)).Got("Lock", time.Now(), 30*time.Second)
	if early := time.Until(renewed.SentAt.Add(d)); early > 0 || l.Token() <= g.Token {
		t.Errorf("the next was granted %s too early, with token %d after %d", early, l.Token(), g.Token)
	}
	if p := b.Renew(await.Bounded(t, time.Minute), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
		t.Errorf("Renew of an expired hold: %+v", p)
	}
	mustUnlock(t, l)
}

// zkKeptBeside: a renewal and the release leave nothing, whichever comes first.
func zkKeptBeside(t *testing.T, s *service.Server) {
	const rounds = 100
	z := treeOf(t, s)
	b, _ := zkSide(t, s)
	lost := 0
	for i := range rounds {
		r := fixedRequest(b, fmt.Sprint("kept-beside-", i%4), time.Hour)
		steps.Acquired(t, b, r)
		renewed := make(chan error, 1)
		go func() { renewed <- b.Renew(t.Context(), []driver.Request{r})[0].Err }()
		<-time.After(time.Duration(i%10) * 300 * time.Microsecond)
		steps.Released(t, b, r)
		if err := await.From(t, renewed); errors.Is(err, driver.ErrLost) {
			lost++
		} else if err != nil {
			t.Errorf("Renew beside the release: %v", err)
		}
		z.await(r.Name, 0)
	}
	t.Logf("the release came first in %d of %d rounds", lost, rounds)
}

// zkKeptReleased: a release in the middle of the keep leaves nothing, whichever comes first, also
// if the keep is sent again.
func zkKeptReleased(t *testing.T, s *service.Server) {
	const rounds = 100
	z := treeOf(t, s)
	b, p := zkSide(t, s)
	granted := 0
	for i := range rounds {
		r := fixedRequest(b, fmt.Sprint("kept-released-", i%4), time.Hour)
		z.openIndex(r.ID)
		if i%4 == 0 {
			p.DropReply(keptMark)
		}
		released := r
		released.Uncertain = true
		done := make(chan error, 1)
		go func() {
			_, err := steps.Acquire(t.Context(), b, r)
			done <- err
		}()
		<-time.After(time.Duration(i%20) * 300 * time.Microsecond)
		if err := b.Release(await.Bounded(t, 30*time.Second), released); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release beside the keep: %v", err)
		}
		if err := await.From(t, done); err == nil {
			granted++
		} else if !errors.Is(err, driver.ErrLost) {
			t.Errorf("Acquire beside the release: %v", err)
		}
		z.await(r.Name, 0)
		await.That(t, "nothing is left in the index", func() bool { return len(z.index(r.ID)) == 0 })
	}
	t.Logf("the grant came first in %d of %d rounds", granted, rounds)
}

// zkKeptSession: a fixed request outlasts its session, also while its client lives, and is renewed
// and released as before.
func zkKeptSession(t *testing.T, s *service.Server) {
	const name = "kept-session"
	z, other := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	c := zkOpen(t, s.URL, "?session_timeout=2s", zkTTL)
	l := steps.MustLock(t, c.Mutex(name, dlock.FixedLease(time.Hour)))
	heal := c.p.Isolate()
	z.await(name, 1) // the session has ended
	heal()
	plain := steps.MustLock(t, c.Mutex(name+"-2")) // in another session
	if err := l.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
	if err := l.Renew(await.Bounded(t, 30*time.Second)); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if _, err := other.Mutex(name).TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of another client: %v", err)
	}
	mustUnlock(t, l)
	mustUnlock(t, steps.MustLock(t, other.Mutex(name)))
	mustUnlock(t, plain)
	z.await(name, 0)
}

// zkKeptNotified: the holder of a fixed lease that has outlasted its session and was renewed learns
// at once that it was broken.
func zkKeptNotified(t *testing.T, s *service.Server) {
	const name = "kept-rung"
	z, other := treeOf(t, s), zkProbe(t, s)
	c := zkOpen(t, s.URL, "?session_timeout=4s", 2*zkTTL)
	l := steps.MustLock(t, c.Mutex(name, dlock.FixedLease(time.Hour)))
	heal := c.p.Isolate()
	z.await(name, 1) // the session has ended
	heal()
	if err := l.Renew(await.Bounded(t, 30*time.Second)); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	err := other.(driver.Breaker).Break(await.Bounded(t, 30*time.Second), name, driver.Token(l.Token()), true)
	if err != nil {
		t.Fatalf("Break: %v", err)
	}
	await.That(t, "the lease is lost", func() bool { return l.Err() != nil })
	if err := l.Err(); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("the lease: %v", err)
	}
	z.await(name, 0)
}

// zkKeptWaits: waiters for a kept node write once when it has expired, and are granted then.
func zkKeptWaits(t *testing.T, s *service.Server) {
	const name, d = "kept-waits", 3 * time.Second
	b, _ := zkSide(t, s)
	c := zkOpen(t, s.URL, "", 10*time.Minute)
	mustUnlock(t, steps.MustLock(t, c.Mutex("kept-warm")))
	r := fixedRequest(b, name, d)
	sent := time.Now()
	g := steps.Acquired(t, b, r)
	kept := time.Now()
	b.Close()
	var readers []*steps.Attempt
	for range 20 {
		readers = append(readers, steps.Try(t, c.RWMutex(name).Read()))
	}
	await.That(t, "all wait", func() bool { return len(steps.Queue(t, zkProbe(t, s), name).Waiters()) == 20 })
	before := c.p.Counts().RoundTrips
	var leases []*dlock.Lease
	for _, a := range readers {
		l := a.Got("a read lease", kept, 30*time.Second)
		if early := time.Until(sent.Add(d)); early > 0 {
			t.Errorf("granted %s too early", early)
		}
		if l.Token() < g.Token {
			t.Errorf("token %d after %d", l.Token(), g.Token)
		}
		leases = append(leases, l)
	}
	late := time.Since(kept.Add(d))
	n := c.p.Counts().RoundTrips - before
	t.Logf("20 readers were granted within %s after the end; %d round trips", late, n)
	if late > 2*time.Second {
		t.Errorf("granted %s after the end", late)
	}
	// the time, the kept node's end, its removal, a listing or two; pings, on a slow machine
	if n > 35 {
		t.Errorf("20 readers made %d round trips", n)
	}
	for _, l := range leases {
		mustUnlock(t, l)
	}
}

// zkProbe is a client of the driver that only inspects.
func zkProbe(t *testing.T, s *service.Server) driver.Backend {
	b, _ := zkSide(t, s)
	return b
}

// zkKeptConflict: an expired kept node decides no kind of lock.
func zkKeptConflict(t *testing.T, s *service.Server) {
	const name = "kept-conflict"
	b, _ := zkSide(t, s)
	r := fixedRequest(b, name, zkTTL)
	r.Mode, r.Limit = driver.Shared, 2
	steps.Acquired(t, b, r)
	over := time.Now().Add(zkTTL + 10*time.Millisecond)
	b.Close()
	c := zkOpen(t, s.URL, "", time.Minute)
	if _, err := c.Mutex(name).TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrConflict) && time.Now().Before(over) {
		t.Errorf("TryLock of a semaphore: %v", err)
	}
	<-time.After(time.Until(over))
	mustUnlock(t, steps.MustLock(t, c.Mutex(name)))
}

// zkKeptJoin: an expired hold can no longer be joined, though its kept node was not removed.
func zkKeptJoin(t *testing.T, s *service.Server) {
	const name, d = "kept-join", 3 * time.Second
	b, _ := zkSide(t, s)
	r := fixedRequest(b, name, d)
	g := steps.Acquired(t, b, r)
	over := time.Now().Add(d + 10*time.Millisecond)
	b.Close()
	other := zkProbe(t, s)
	join := func() (driver.Request, error) {
		j := steps.Asked(other, name, time.Minute)
		j.Owner, j.Token = r.ID, g.Token
		_, err := steps.Acquire(await.Bounded(t, 30*time.Second), other, j)
		return j, err
	}
	if j, err := join(); err == nil {
		steps.Released(t, other, j)
	} else if time.Now().Before(over) {
		t.Errorf("a join of a kept hold: %v", err)
	}
	<-time.After(time.Until(over))
	if _, err := join(); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a join of an expired hold: %v", err)
	}
	z := treeOf(t, s)
	z.await(name, 0)
}

// zkKeptSwept: expired kept nodes of names that are not used again are removed when other requests
// are kept.
func zkKeptSwept(t *testing.T, s *service.Server) {
	const names = 6
	z := treeOf(t, s)
	b, _ := zkSide(t, s)
	// all in one directory of the index, beside entries of other tests
	var entries []string
	same := func(b driver.Backend, name string, d time.Duration) driver.Request {
		r := fixedRequest(b, name, d)
		r.ID[0] = 0xa5
		r.Owner = r.ID
		entries = append(entries, r.ID.String())
		return r
	}
	for i := range names {
		steps.Acquired(t, b, same(b, fmt.Sprint("unused-", i), zkTTL))
	}
	lives := same(b, "unused-lives", time.Hour)
	steps.Acquired(t, b, lives)
	b.Close()
	<-time.After(zkTTL + 10*time.Millisecond)
	other := zkProbe(t, s)
	for i := range 2 { // each sweeps four
		r := same(other, fmt.Sprint("used-", i), time.Hour)
		steps.Acquired(t, other, r)
		steps.Released(t, other, r)
	}
	for i := range names {
		if left := z.children(zkQueue(fmt.Sprint("unused-", i))); len(left) > 0 {
			t.Errorf("%q is left of names that are not used again", left)
		}
	}
	left := slices.DeleteFunc(z.children(keptIndex+"a5"), func(entry string) bool {
		id, _, _ := strings.Cut(entry, ":")
		return !slices.Contains(entries, id)
	})
	if len(left) != 1 || !strings.HasPrefix(left[0], lives.ID.String()) {
		t.Errorf("the index has %q, want the entries that have not expired", left)
	}
}

// zkKeptShown: a fixed lease is one request, with the time that is left, and an expired one is
// neither shown nor listed.
func zkKeptShown(t *testing.T, s *service.Server) {
	const name, d = "kept-shown", 10 * time.Second
	b, _ := zkSide(t, s)
	look := zkProbe(t, s)
	listed := func() bool {
		names, err := look.(driver.Lister).List(await.Bounded(t, 30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if n == name {
				return true
			}
		}
		return false
	}
	r := fixedRequest(b, name, d)
	asked := time.Now()
	g := steps.Acquired(t, b, r)
	see := func(when string) {
		t.Helper()
		q := steps.Queue(t, look, name)
		hs := q.Holders()
		if time.Since(asked) > d {
			return // a machine that stood still
		}
		if q.Len() != 1 || len(hs) != 1 || hs[0].ID != r.ID || hs[0].Token != g.Token || !hs[0].Fixed || hs[0].Label != r.Label || hs[0].Client != r.Client {
			t.Fatalf("%s: %+v", when, q)
		}
		if least, left := d-time.Since(asked)-time.Second, hs[0].Left; left < least || left > d {
			t.Errorf("%s: %s are left, want %s at least", when, left, least)
		}
		if !listed() && time.Since(asked) < d {
			t.Errorf("%s: it is not listed", when)
		}
	}
	see("while its client lives")
	b.Close()
	see("afterwards")
	<-time.After(time.Until(asked.Add(d + time.Second)))
	if listed() {
		t.Error("it is listed, and has expired")
	}
	if q := steps.Queue(t, look, name); q.Len() > 0 {
		t.Errorf("it is shown, and has expired: %+v", q)
	}
}

// zkKeptConn: a kept node also counts when the session that made it goes on.
func zkKeptConn(t *testing.T, s *service.Server) {
	const name, d = "kept-conn", 6 * time.Second
	z, other := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	side := zkOnConn(t, s, p, zkTimeout(5*time.Second), zookeeper.Options{})
	r := fixedRequest(side, name, d)
	asked := time.Now()
	steps.Acquired(t, side, r)
	side.Backend.Close()
	z.await(name, 1)
	l := steps.Try(t, other.Mutex(name)).Got("Lock", time.Now(), 30*time.Second)
	if early := time.Until(asked.Add(d)); early > 0 {
		t.Errorf("the next was granted %s too early", early)
	}
	mustUnlock(t, l)
}
