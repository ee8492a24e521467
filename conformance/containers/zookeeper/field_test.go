package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/netfault"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// listings returns how often a directory was listed in what a client sent.
func listings(r *netfault.Recording) (n int) {
	const getChildren2 = 12
	for _, sent := range r.End() {
		for len(sent) >= 12 {
			size := int(binary.BigEndian.Uint32(sent))
			if binary.BigEndian.Uint32(sent[8:]) == getChildren2 {
				n++
			}
			sent = sent[min(4+size, len(sent)):]
		}
	}
	return n
}

// TestZooKeeperCrowd: thousands of waiters of one client list the directory together, and the
// client does not take its own slowness for a server that is dead: after a cut it connects once,
// and the next is in soon.
func TestZooKeeperCrowd(t *testing.T) {
	const waiters, ttl, name = 3000, 10 * time.Second, "crowd"
	s := service.StartOwn(t, ZooKeeper)
	z, holder, c := treeOf(t, s), zkOpen(t, s.URL, "", ttl), zkOpen(t, s.URL, "", ttl)
	held := steps.MustLock(t, holder.Mutex(name))
	mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
	dialled, sent := c.p.Counts().Dialled, c.p.Record()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in := make(chan *dlock.Lease, waiters)
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if l, err := c.Mutex(name).Lock(ctx); err == nil {
				in <- l
			} else if !errors.Is(err, context.Canceled) {
				t.Errorf("Lock: %v", err)
			}
		})
	}
	z.await(name, waiters+1)
	await.That(t, "everybody waits for an event", func() bool { return watchesOf(t, s) >= waiters })
	if n := listings(sent); n > waiters/4 {
		t.Errorf("%d waiters that came at once listed the directory %d times", waiters, n)
	} else {
		t.Logf("%d waiters listed the directory %d times", waiters, n)
	}
	if n := c.p.Counts().Dialled - dialled; n > 0 {
		t.Errorf("the client has hung up on a server that answers: %d connections more", n)
	}

	sent = c.p.Record()
	c.p.Cut()
	cut := time.Now()
	mustUnlock(t, held)
	select {
	case l := <-in:
		t.Logf("the next is in %s after the cut", time.Since(cut))
		// 2 s on a machine that does nothing else
		if took := time.Since(cut); took > 2*time.Second+ttl/2 {
			t.Errorf("the next is in %s after the cut", took)
		}
		mustUnlock(t, l)
	case <-time.After(time.Minute):
		t.Fatal("a minute after the cut nobody is in")
	}
	start := time.Now()
	const handOffs = 20
	for range handOffs {
		mustUnlock(t, <-in)
	}
	t.Logf("%d hand-offs after that took %s", handOffs, time.Since(start))
	await.That(t, "everybody waits for an event again", func() bool { return watchesOf(t, s) >= waiters-handOffs-2 })
	if n := listings(sent); n > handOffs+20 {
		t.Errorf("after a cut %d waiters listed the directory %d times for %d hand-offs", waiters, n, handOffs)
	}
	if n := c.p.Counts().Dialled - dialled; n > 2 {
		t.Errorf("one cut made %d connections", n)
	}
	cancel()
	wg.Wait()
}

// TestZooKeeperIdleCrowd: what waits costs the same for one and for many, for as long as nothing
// happens.
func TestZooKeeperIdleCrowd(t *testing.T) {
	t.Parallel()
	const ttl, idle = time.Second, 6 * time.Second
	s := service.StartOwn(t, ZooKeeper)
	z, holder := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	spent := func(waiters int) int64 {
		name, c := fmt.Sprint("idle-", waiters), zkOpen(t, s.URL, "", ttl)
		l := steps.MustLock(t, holder.Mutex(name))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		before := watchesOf(t, s)
		for range waiters {
			wg.Go(func() { c.Mutex(name).Lock(ctx) })
		}
		z.await(name, waiters+1)
		await.That(t, "everybody waits for an event", func() bool { return watchesOf(t, s) >= before+waiters })
		calls, sent := c.p.Counts().RoundTrips, c.p.Record()
		<-time.After(idle)
		n, listed := c.p.Counts().RoundTrips-calls, listings(sent)
		cancel()
		wg.Wait()
		mustUnlock(t, l)
		t.Logf("%d waiters: %d round trips and %d listings in %s", waiters, n, listed, idle)
		if listed > 10 { // all of them look once more, after those who came last, and share that
			t.Errorf("%d waiters, for whom nothing happened, listed the directory %d times", waiters, listed)
		}
		return n
	}
	var one, many int64
	var wg sync.WaitGroup
	wg.Go(func() { one = spent(1) })
	wg.Go(func() { many = spent(400) })
	wg.Wait()
	if many > one+one/2+5 {
		t.Errorf("while nothing happens one waiter costs %d round trips, 400 cost %d", one, many)
	}
}

// TestZooKeeperLateJoins: who joins a hold that is just given up is in, or is told that it is lost:
// nothing else.
func TestZooKeeperLateJoins(t *testing.T) {
	const rounds, abreast = 25, 8
	s := service.StartOwn(t, ZooKeeper)
	a, b := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", time.Minute)
	lost := 0
	for i := range rounds {
		m, name := a.Mutex("late"), b.Mutex("late")
		l := steps.MustLock(t, m)
		join := dlock.WithOwner(await.Bounded(t, 30*time.Second), l.Owner())
		var wg sync.WaitGroup
		var mu sync.Mutex
		for k := range abreast {
			wg.Go(func() {
				<-time.After(time.Duration(k*i) * 20 * time.Microsecond)
				j, err := name.Lock(join)
				if err == nil {
					err = j.Unlock(join)
				} else if errors.Is(err, dlock.ErrLost) {
					mu.Lock()
					lost++
					mu.Unlock()
					return
				}
				if err != nil {
					t.Errorf("a join beside the Unlock of its hold: %v", err)
				}
			})
		}
		<-time.After(time.Duration(i) * 50 * time.Microsecond)
		mustUnlock(t, l)
		wg.Wait()
	}
	t.Logf("%d of %d joins came too late", lost, rounds*abreast)

	over, err := a.Mutex("fixed", dlock.FixedLease(time.Second)).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owner := over.Owner()
	for time.Now().Before(over.Until().Add(500 * time.Millisecond)) {
		j, err := b.Mutex("fixed").Lock(dlock.WithOwner(await.Bounded(t, 30*time.Second), owner))
		if err == nil {
			mustUnlock(t, j)
		} else if !errors.Is(err, dlock.ErrLost) {
			t.Fatalf("a join under a fixed lease that is over: %v", err)
		}
	}
}

// TestZooKeeperBreakMany: a hold with more joins than fit into a transaction is broken.
func TestZooKeeperBreakMany(t *testing.T) {
	const joins, abreast = 1100, 32
	s := service.StartOwn(t, ZooKeeper)
	a, b, operator := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", 6*time.Second), zkOpen(t, s.URL, "", time.Minute)
	for _, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
		name := fmt.Sprint("many-", len(opts))
		m := b.Mutex(name, dlock.Label(strings.Repeat("a label ", 30)))
		l := steps.MustLock(t, a.Mutex(name))
		joined := make([]*dlock.Lease, joins)
		ctx := dlock.WithOwner(t.Context(), l.Owner())
		var wg sync.WaitGroup
		for k := range abreast {
			wg.Go(func() {
				for i := k; i < joins; i += abreast {
					j, err := m.Lock(ctx)
					if err != nil {
						t.Errorf("a join: %v", err)
						return
					}
					joined[i] = j
				}
			})
		}
		wg.Wait()
		start := time.Now()
		if err := operator.Break(await.Bounded(t, 60*time.Second), name, l.Token(), opts...); err != nil {
			t.Fatalf("Break of a hold with %d joins: %v", joins, err)
		}
		t.Logf("Break took %s", time.Since(start))
		if j, err := operator.Mutex(name).Lock(dlock.WithOwner(await.Bounded(t, 30*time.Second), l.Owner())); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("a join of what is broken: %v, %v", j, err)
		}
		lost(t, joined[0])
		lost(t, joined[joins-1])
		if len(opts) > 0 {
			mustUnlock(t, steps.MustLock(t, operator.Mutex(name)))
		}
	}
}

// TestZooKeeperBrokenInDoubt: who does not know yet where its request stands, since the replies are
// lost, and was broken, holds nothing when it is back.
func TestZooKeeperBrokenInDoubt(t *testing.T) {
	const names, ttl = 12, 6 * time.Second
	s := service.StartOwn(t, ZooKeeper)
	z, c, other := treeOf(t, s), zkOpen(t, s.URL, "", ttl), zkOpen(t, s.URL, "", time.Minute)
	mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
	held, waiters, tokens := make([]*dlock.Lease, names), make([]*steps.Attempt, names), make([]dlock.Token, names)
	for i := range names {
		held[i] = steps.MustLock(t, other.Mutex(fmt.Sprint("doubt-", i)))
	}
	heal := c.p.Hold(netfault.ToClient)
	defer heal()
	for i := range names {
		waiters[i] = steps.Try(t, c.Mutex(fmt.Sprint("doubt-", i)))
		z.await(fmt.Sprint("doubt-", i), 2)
		mustUnlock(t, held[i])
	}
	for i := range names {
		name := fmt.Sprint("doubt-", i)
		q, err := other.Inspect(await.Bounded(t, 30*time.Second), name)
		if err != nil || len(q.Holders()) != 1 {
			t.Fatalf("%+v, %v", q, err)
		}
		tokens[i] = q.Holders()[0].Token
		if err := other.Break(await.Bounded(t, 30*time.Second), name, tokens[i]); err != nil {
			t.Fatal(err)
		}
	}
	// The client has hung up by then, and has to prove its session before it is granted anything.
	<-time.After(ttl/2 + 100*time.Millisecond)
	heal()
	for i, w := range waiters {
		l := w.Got("Lock of who was broken", time.Now(), 30*time.Second)
		if l.Token() <= tokens[i] {
			t.Errorf("what was broken with token %d is granted with %d", tokens[i], l.Token())
		}
		l.Unlock(t.Context())
	}
}

// TestZooKeeperCloseRaces: a client is closed in the middle of calls, and its connection breaks in
// the middle of waits that are given up; nothing in the process races. It can only fail under the
// race detector.
func TestZooKeeperCloseRaces(t *testing.T) {
	const abreast = 16
	s := service.StartOwn(t, ZooKeeper)
	open := func(prefix string) map[driver.Backend]*netfault.Proxy {
		own, side := netfault.NewProxy(), netfault.NewProxy()
		t.Cleanup(own.Close)
		t.Cleanup(side.Close)
		b, err := zkBackend(zkBehind(t, s.URL, own, "/"+prefix))
		if err != nil {
			t.Fatal(err)
		}
		return map[driver.Backend]*netfault.Proxy{b: own, zkOnConn(t, s, side, 20*time.Second, zookeeper.Options{Chroot: "/" + prefix}): side}
	}
	t.Run("close", func(t *testing.T) {
		for i := range 10 {
			for b, p := range open("close") {
				const trip, ttl = 40 * time.Millisecond, 10 * time.Second
				warm := steps.Asked(b, "warm", ttl) // there is a session
				steps.Acquired(t, b, warm)
				steps.Released(t, b, warm)
				p.Delay(netfault.ToClient, trip)
				var wg sync.WaitGroup
				for k := range abreast {
					wg.Go(func() {
						for n := 0; ; n++ { // the directory is made each time
							r := steps.Asked(b, fmt.Sprint("new-", i, "-", k, "-", n), ttl)
							if _, err := b.Acquire(t.Context(), r); err != nil {
								return
							}
							b.Inspect(t.Context(), r.Name)
						}
					})
				}
				<-time.After(trip + trip*time.Duration(i)/5)
				b.Close() // and that of the connection, if it is the user's
				wg.Wait()
			}
		}
	})
	t.Run("break", func(t *testing.T) {
		holder := zkOpen(t, s.URL, "/break", time.Minute)
		for k := range abreast {
			steps.MustLock(t, holder.Mutex(fmt.Sprint("held-", k)))
		}
		for b, p := range open("break") {
			c := steps.ClientOf(t, b, dlock.TTL(10*time.Second))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for k := range abreast {
				wg.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						brief, done := context.WithTimeout(ctx, time.Duration(1+(7*n+k)%40)*time.Millisecond)
						c.Mutex(fmt.Sprint("held-", k)).Lock(brief)
						done()
					}
				})
			}
			for i := range 25 {
				<-time.After(time.Duration(20+3*i) * time.Millisecond)
				p.Cut()
			}
			cancel()
			wg.Wait()
			c.Close()
		}
	})
}

// usual is ZooKeeper with the bounds of sessions that a server has by itself: 4 and 40 s.
func usualZooKeeper() service.Kind {
	k := ZooKeeper
	k.Command = zookeeperCommand("minSessionTimeout=4000\nmaxSessionTimeout=40000\n", 0)
	return k
}

// TestZooKeeperTTLs: a few sessions serve all TTLs, and what a session cannot keep is refused.
func TestZooKeeperTTLs(t *testing.T) {
	s := service.StartOwn(t, usualZooKeeper())
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	c, err := dlock.Open(await.Bounded(t, 30*time.Second), zkBehind(t, s.URL, p, ""), dlock.Logger(nil))
	if err != nil {
		t.Fatalf("Open without a TTL: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	caps := c.Capabilities()
	if caps.MinTTL != 2250*time.Millisecond || caps.MaxTTL < 28*time.Second || caps.MaxTTL > 40*time.Second*5/7 || caps.FixedOutlives || caps.ServerEndsFixed {
		t.Errorf("%+v", caps)
	}
	if left := time.Until(steps.MustLock(t, c.Mutex("default")).Until()); left > caps.MaxTTL || left < 25*time.Second {
		t.Errorf("a lease without a TTL has %s", left)
	}
	for _, ttl := range []time.Duration{24 * time.Hour, caps.MaxTTL + time.Millisecond, caps.MinTTL - time.Millisecond, time.Millisecond} {
		for _, o := range []dlock.LockOption{dlock.TTL(ttl), dlock.FixedLease(ttl)} {
			_, err := c.Mutex("refused", o).TryLock(await.Bounded(t, 30*time.Second))
			if !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), caps.MaxTTL.String()) {
				t.Errorf("a TTL of %s: %v", ttl, err)
			}
		}
	}
	for i := range 100 { // as FixedLease(time.Until(deadline))
		ttl := 2500*time.Millisecond + time.Duration(i)*257*time.Millisecond
		l, err := c.Mutex(fmt.Sprint("fixed-", i), dlock.FixedLease(ttl)).Lock(await.Bounded(t, 30*time.Second))
		if err != nil {
			t.Fatalf("a fixed lease of %s: %v", ttl, err)
		}
		if left := time.Until(l.Until()); left > ttl {
			t.Errorf("a fixed lease of %s is trusted for %s", ttl, left)
		}
		mustUnlock(t, l)
	}
	if n := p.Counts().Open; n > 6 {
		t.Errorf("100 TTLs made %d connections", n)
	}
	for _, more := range []string{"?session_timeout=20s", "?session_timeout=20s&ttl=10s"} {
		c, err := dlock.Open(await.Bounded(t, 30*time.Second), s.URL+more, dlock.Logger(nil))
		if err != nil {
			t.Fatalf("%s: %v", more, err)
		}
		caps := c.Capabilities()
		if caps.MaxTTL > 20*time.Second*5/7 || caps.MinTTL > caps.MaxTTL/2+time.Millisecond || caps.MinTTL < caps.MaxTTL/2 {
			t.Errorf("%s: %s to %s", more, caps.MinTTL, caps.MaxTTL)
		}
		steps.MustLock(t, c.Mutex(more))
		c.Close()
	}
}

// TestZooKeeperWaited: a wait that ends says whether the request stood in the queue.
func TestZooKeeperWaited(t *testing.T) {
	t.Parallel()
	s := service.Start(t, ZooKeeper)
	holder, c := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", time.Minute)
	l := steps.MustLock(t, holder.Mutex("waited"))
	wait := func() error {
		_, err := c.Mutex("waited").Lock(await.Bounded(t, 500*time.Millisecond))
		return err
	}
	mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
	if err := wait(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("who stood in the queue: %v", err)
	}
	heal := c.p.Isolate()
	if err := wait(); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dlock.ErrHeld) {
		t.Errorf("whom no server answered: %v", err)
	}
	heal()
	mustUnlock(t, l)
}

// TestZooKeeperCauses: what keeps a client from its servers is told, within a bound, and is
// nobody's deadline.
func TestZooKeeperCauses(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	full, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { full.Close() })
	go func() {
		for c, err := full.Accept(); err == nil; c, err = full.Accept() {
			c.Close()
		}
	}()
	nobody, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, url, want string }{
		{"a server without a connection left", "zookeeper://" + full.Addr().String(), "maxClientCnxns"},
		{"a server that does not answer", "zookeeper://" + mute.Addr().String(), "does not answer"},
		{"one that does not answer, over TLS", "zookeepers://" + mute.Addr().String(), mute.Addr().String()},
		{"nobody", fmt.Sprintf("zookeeper://127.0.0.1:%d", nobody[0]), "refused"},
		{"no such host", "zookeeper://no-such-host.invalid", "no-such-host.invalid"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, err := driverOpen(context.Background(), c.url)
			if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open: %v; want %q", err, c.want)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("Open took %s", took)
			}
			ctx := await.Bounded(t, time.Second)
			if _, err := driverOpen(ctx, c.url); err == nil || ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Open with a deadline: %v", err)
			}
		})
	}
	s := service.StartOwn(t, ZooKeeper)
	b, err := zkBackend(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	s.Kill(t)
	start := time.Now()
	_, err = b.Acquire(context.Background(), steps.Asked(b, "x", 30*time.Second))
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("TryLock where nobody listens any more: %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("TryLock took %s", took)
	}
}

// driverOpen opens the driver by a URL under that context.
func driverOpen(ctx context.Context, text string) (driver.Backend, error) {
	b, err := zkBackendIn(ctx, text)
	if err == nil {
		b.Close()
	}
	return b, err
}
