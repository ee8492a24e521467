package zookeeper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// TestZooKeeperEnsembleFaults has the faults of three servers.
func TestZooKeeperEnsembleFaults(t *testing.T) {
	t.Parallel()
	e := StartEnsemble(t)
	for _, f := range []struct {
		what string
		test func(*testing.T, *Ensemble)
	}{
		{"the leader is killed", zkLeaderKilled},
		{"a follower is cut off", func(t *testing.T, e *Ensemble) { zkMinority(t, e, e.Follower, true) }},
		{"the leader is cut off", func(t *testing.T, e *Ensemble) {
			zkMinority(t, e, func(t service.T) *service.Server { return e.AwaitLeader(t) }, false)
		}},
		{"the client moves", zkMoves},
		{"a request stays behind", zkStaysBehind},
		{"a follower lags", zkLags},
		{"there is no leader", zkNoLeader},
		{"all are killed", zkAllKilled},
	} {
		t.Run(f.what, func(t *testing.T) {
			e.AwaitServing(t)
			service.Watch(t, e.Nodes...)
			f.test(t, e)
		})
	}
}

// only is the URL of one of the servers.
func only(s *service.Server) string { return "zookeeper://" + s.Addr }

// zkLeaderKilled: holders go on holding, waiters go on waiting, and one request at a time holds.
// A fixed lease that outlives its client lasts for its full time, by the clock of the next leader
// (which is that of the last one here).
func zkLeaderKilled(t *testing.T, e *Ensemble) {
	w := steps.StartWorkers(t, e.URL(), false)
	const ttl = time.Minute // elections on a busy machine may take a third of it
	c := zkOpen(t, e.URL(), "", ttl)
	if !c.Capabilities().FailoverSafe {
		t.Error("Capabilities say that a failover may lose grants")
	}
	held := steps.MustLock(t, c.Mutex("held"))
	const kept = 10 * time.Second
	gone := zkOpen(t, e.URL(), "", ttl)
	left, asked := steps.MustLock(t, gone.Mutex("left")), time.Now()
	if err := left.UnlockAfter(await.Bounded(t, 30*time.Second), kept); err != nil {
		t.Fatal(err)
	}
	gone.Close()
	in := make(chan time.Time, 1)
	next := steps.Try(t, zkOpen(t, e.URL(), "", ttl).Mutex("left"))
	go func() { <-next.Done; in <- time.Now() }()
	waiter := steps.Try(t, zkOpen(t, e.URL(), "", ttl).Mutex("held"))
	w.More(t, 50)
	for range 2 {
		leader := e.AwaitLeader(t)
		leader.Kill(t)
		e.AwaitLeader(t, leader)
		w.More(t, 50)
		leader.Restart(t)
		e.AwaitServing(t)
		w.More(t, 50)
	}
	if err := held.Renew(await.Bounded(t, 30*time.Second)); err != nil || held.Err() != nil || !waiter.Pending() {
		t.Errorf("after two leaders were killed the lease is %v, %v; the waiter is in: %t", err, held.Err(), !waiter.Pending())
	}
	mustUnlock(t, held)
	mustUnlock(t, waiter.Got("Lock", time.Now(), 20*time.Second))
	l := next.Got("Lock of a name that was left held", time.Now(), 20*time.Second)
	if early := asked.Add(kept).Sub(await.From(t, in)); early > 0 || l.Token() <= left.Token() {
		t.Errorf("granted %s too early, with token %d after %d", early, l.Token(), left.Token())
	}
	mustUnlock(t, l)
}

// zkMinority: the client's server is cut off from the two others, which end its session. A follower
// goes on answering reads with the past, which it has to have done once for the test to prove
// anything; a leader may have detected the cut by then. The client stops trusting its lease before
// the successor is granted all the same, and locks again when it is back.
func zkMinority(t *testing.T, e *Ensemble, choose func(service.T) *service.Server, reads bool) {
	stale := false
	for attempts := 0; attempts < 1 || reads && attempts < 8 && !stale; attempts++ {
		e.AwaitServing(t)
		cut := choose(t)
		rest := slices.DeleteFunc(e.Addrs(), func(addr string) bool { return addr == cut.Addr })
		name := "minority-" + strings.ReplaceAll(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:], "_", "-")
		c, other, z := zkOpen(t, only(cut), "", zkTTL), zkOpen(t, "zookeeper://"+strings.Join(rest, ","), "", 20*time.Second), treeOf(t, cut)
		l := steps.MustLock(t, c.Mutex(name))
		heal := e.CutOff(cut)
		defer heal()
		next := steps.Try(t, other.Mutex(name))
		await.From(t, next.Done)
		if next.Err != nil {
			t.Fatalf("Lock at the majority: %v", next.Err)
		}
		if until := l.Until(); until.After(next.At) || next.Lease.Token() <= l.Token() {
			t.Fatalf("the old lease is trusted until %s after the successor's grant; tokens %d, then %d", until.Sub(next.At), l.Token(), next.Lease.Token())
		}
		lost(t, l)
		names, _, err := z.Children(zkQueue(name))
		stale = err == nil && len(names) == 1 // that of the lost lease, and not the successor's
		heal()
		e.AwaitServing(t)
		if _, err := c.Mutex(name).TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("back again the client gets %v; want ErrHeld", err)
		}
		mustUnlock(t, next.Lease)
		mustUnlock(t, steps.MustLock(t, c.Mutex(name, dlock.TTL(time.Minute))))
	}
	if reads && !stale {
		t.Errorf("the server that was cut off never answered with the past: this test proves nothing")
	}
}

// zkRoaming is a client with a proxy before each server.
type zkRoaming struct {
	*dlock.Client
	proxies []*netfault.Proxy
}

// at returns the numbers of the servers that it is connected to.
func (r *zkRoaming) at() (at []int) {
	for i, p := range r.proxies {
		if p.Counts().Open > 0 {
			at = append(at, i)
		}
	}
	return at
}

// zkMoves: a client leaves a server that stands still or is killed for another one; its locks stay
// held.
func zkMoves(t *testing.T, e *Ensemble) {
	// servers that elect a leader first, on a slow machine, keep clients waiting for seconds
	const ttl = 20 * time.Second
	c := e.roaming(t, ttl)
	l := steps.MustLock(t, c.Mutex("moves"))
	waiter := e.roaming(t, ttl)
	a := steps.Try(t, waiter.Mutex("moves"))
	z := treeOf(t, e.Nodes[0])
	z.await("moves", 2)
	for _, fault := range []func(*service.Server) (heal func()){
		func(s *service.Server) func() { s.Pause(t); return func() { s.Continue(t) } },
		func(s *service.Server) func() { s.Kill(t); return func() { s.Restart(t) } },
	} {
		for _, r := range []*zkRoaming{c, waiter} {
			e.AwaitServing(t)
			var at []int
			await.That(t, "the client is at a server", func() bool { at = r.at(); return len(at) == 1 })
			// a connection may break under it
			renewed := func() bool { return l.Renew(await.Bounded(t, ttl)) == nil || l.Err() != nil }
			await.That(t, "the lease is renewed", renewed)
			heal := fault(e.Nodes[at[0]])
			// the old server does not show when it has detected the end
			await.That(t, "the client is at another server too", func() bool {
				return slices.ContainsFunc(r.at(), func(i int) bool { return i != at[0] })
			})
			heal()
			await.That(t, "the client is at one server", func() bool { return len(r.at()) == 1 })
			await.That(t, "the lease is renewed", renewed)
			if err := l.Err(); err != nil {
				t.Fatalf("after a move: %v", err)
			}
		}
	}
	if !a.Pending() {
		t.Fatal("the waiter is in")
	}
	mustUnlock(t, l)
	mustUnlock(t, a.Got("Lock after the moves", time.Now(), ttl))
}

// zkStaysBehind: a request is still under way to one server when the client has moved to another
// and has released the lock. When it arrives it does nothing.
func zkStaysBehind(t *testing.T, e *Ensemble) {
	c := e.roaming(t, 10*time.Second)
	mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
	at := -1
	// it has queried others for their session timeouts
	await.That(t, "the client is at one server", func() bool {
		if now := c.at(); len(now) == 1 {
			at = now[0]
		}
		return at >= 0
	})
	z := treeOf(t, e.Nodes[(at+1)%3])
	z.make(zkQueue("behind"), 0)
	heal := c.proxies[at].Hold(netfault.ToServer)
	l := steps.MustLock(t, c.Mutex("behind"))
	if now := c.at(); slices.Contains(now, at) && len(now) == 1 {
		t.Fatalf("the client is at %v, and was at %d", now, at)
	}
	z.await("behind", 1) // this server may lag
	stood := z.children(zkQueue("behind"))
	heal()
	for range 20 {
		<-time.After(50 * time.Millisecond)
		if now := z.children(zkQueue("behind")); !sameNames(stood, now) {
			t.Fatalf("the nodes were %q, and now are %q", stood, now)
		}
	}
	mustUnlock(t, l)
	z.await("behind", 0)
}

// zkLags: another client sees a grant and can join it at once, though its server learns of it late;
// and it cannot join a hold that has ended, though its server still shows that.
func zkLags(t *testing.T, e *Ensemble) {
	behind := e.Follower(t)
	rest := slices.DeleteFunc(e.Addrs(), func(addr string) bool { return addr == behind.Addr })
	c, late := zkOpen(t, "zookeeper://"+strings.Join(rest, ","), "", time.Minute), zkOpen(t, only(behind), "", time.Minute)
	for i, p := range e.proxies[slices.Index(e.Nodes, behind)] {
		if p != nil && e.Nodes[i] == e.AwaitLeader(t) {
			p.Delay(netfault.ToClient, 100*time.Millisecond)
			defer p.Delay(netfault.ToClient, 0)
		}
	}
	for i := range 5 {
		name := fmt.Sprint("lags-", i)
		l := steps.MustLock(t, c.Mutex(name))
		again, err := late.Mutex(name).Lock(dlock.WithOwner(await.Bounded(t, 30*time.Second), l.Owner()))
		if err != nil {
			t.Fatalf("a join at a server that lags: %v", err)
		}
		mustUnlock(t, again)
		mustUnlock(t, l)
		if _, err := late.Mutex(name).Lock(dlock.WithOwner(await.Bounded(t, 30*time.Second), l.Owner())); !errors.Is(err, dlock.ErrLost) {
			t.Fatalf("a join of a hold that has ended, at a server that still shows it: %v", err)
		}
		p, err := c.Semaphore(name+"-n", 2).Lock(await.Bounded(t, 30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if q, err := late.Inspect(await.Bounded(t, 30*time.Second), name+"-n"); err != nil || len(q.Holders) != 1 {
			t.Errorf("Inspect at a server that lags: %v, %d holders", err, len(q.Holders))
		}
		if err := late.Break(await.Bounded(t, 30*time.Second), name+"-n", p.Token(), dlock.Force()); err != nil {
			t.Errorf("Break at a server that lags: %v", err)
		}
	}
}

// zkNoLeader: the one remaining server accepts connections and closes them at once; clients do not
// storm it, and continue when there is a leader.
func zkNoLeader(t *testing.T, e *Ensemble) {
	const while, most = 2 * time.Second, 150
	left := e.Nodes[0]
	c := zkOpen(t, only(left), "", time.Minute)
	l := steps.MustLock(t, c.Mutex("no-leader"))
	e.Nodes[1].Kill(t)
	e.Nodes[2].Kill(t)
	await.That(t, "the remaining server stops serving", func() bool { return leads(left) == "" })
	before := c.p.Counts().Dialed
	<-time.After(while)
	if n := c.p.Counts().Dialed - before; n > most {
		t.Errorf("the client made %d connections in %s", n, while)
	}
	e.Nodes[1].Restart(t)
	e.Nodes[2].Restart(t)
	e.AwaitServing(t)
	if err := l.Renew(await.Bounded(t, 30*time.Second)); err != nil || l.Err() != nil {
		t.Errorf("when there is a leader again the lease is %v, %v", err, l.Err())
	}
	mustUnlock(t, l)
}

// zkAllKilled: the servers come back with the sessions that they had.
func zkAllKilled(t *testing.T, e *Ensemble) {
	c, other := zkOpen(t, e.URL(), "", time.Minute), zkOpen(t, e.URL(), "", time.Minute)
	l := steps.MustLock(t, c.Mutex("killed"))
	waiter := steps.Try(t, other.Mutex("killed"))
	treeOf(t, e.Nodes[0]).await("killed", 2)
	for _, n := range e.Nodes {
		n.Kill(t)
	}
	for _, n := range e.Nodes {
		n.Restart(t)
	}
	e.AwaitServing(t)
	if err := l.Renew(await.Bounded(t, 30*time.Second)); err != nil || l.Err() != nil || !waiter.Pending() {
		t.Fatalf("after a restart of all servers the lease is %v, %v; the waiter is in: %t", err, l.Err(), !waiter.Pending())
	}
	mustUnlock(t, l)
	next := waiter.Got("Lock", time.Now(), 20*time.Second)
	if next.Token() <= l.Token() {
		t.Errorf("tokens %d, then %d", l.Token(), next.Token())
	}
}

func (e *Ensemble) roaming(t *testing.T, ttl time.Duration) *zkRoaming {
	t.Helper()
	r := &zkRoaming{}
	var hosts []string
	for _, n := range e.Nodes {
		p := netfault.NewProxy()
		t.Cleanup(p.Close)
		addr, err := p.Addr(n.Addr)
		if err != nil {
			t.Fatal(err)
		}
		r.proxies, hosts = append(r.proxies, p), append(hosts, addr)
	}
	c, err := dlock.Open(t.Context(), "zookeeper://"+strings.Join(hosts, ","), dlock.TTL(ttl), dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r.Client = c
	return r
}
