package zookeeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// zkPrompt is how long a Lock may take to end with its context. It ends at once unless the machine
// stands still; the other end, a driver that hangs up, takes at least 7 s.
const zkPrompt = 5 * time.Second

// TestZooKeeperFaults has the faults between clients and one server.
func TestZooKeeperFaults(t *testing.T) {
	s := service.StartOwn(t, ZooKeeper)
	for _, f := range []struct {
		what string
		test func(*testing.T, *service.Server)
	}{
		{"a create without a reply", zkLostCreate},
		{"a create that never arrives", zkCutCreate},
		{"a wait is abandoned in the middle of a create", zkAbandonedCreate},
		{"a late copy of a create", zkLateCreate},
		{"a node of an earlier session", zkEarlierSession},
		{"a join without a reply", zkLostJoin},
		{"an unlock without a reply", zkLostUnlock},
		{"a read without a reply", zkLostRead},
		{"a user's connection outlives its client", zkOutlived},
		{"a user's connection is away for long", zkLongAway},
		{"connections break", zkBrokenConnections},
		{"the client is cut off", zkCutClient},
		{"a TryLock is cut off", zkCutTry},
		{"a session longer than servers give", zkLongSession},
		{"the client is stopped", zkStoppedClient},
		{"a node is deleted by hand", zkHandDeleted},
		{"a hold is broken", zkBroken},
		{"a hold is broken before its client knows of it", zkBrokenUnseen},
		{"an unlock of a broken hold", zkUnlockBroken},
		{"two backends on one connection", zkTwoOnAConn},
		{"foreign children", zkForeign},
		{"parents vanish", zkNoParents},
		{"nothing is left", zkNothingLeft},
	} {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			service.Watch(t, s)
			f.test(t, s)
		})
	}
}

// zkLostCreate: the server has executed the create, and the client finds its node again, also if
// the answers to its first listings are lost too.
func zkLostCreate(t *testing.T, s *service.Server) {
	z, other := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	for lost := range 4 {
		name := fmt.Sprint("lost-create-", lost)
		z.make(zkQueue(name), 0) // so that the first create succeeds
		c := zkOpen(t, s.URL, "", time.Minute)
		mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
		drop := c.p.DropReply(zkQueue(name))
		a := steps.Try(t, c.Mutex(name))
		for range lost {
			await.Closed(t, "the drop", drop)
			drop = c.p.DropReply(zkQueue(name))
		}
		if lost < 3 {
			await.Closed(t, "the last drop", drop)
		} else {
			c.p.DropReply("no such thing")
		}
		l := a.Got("Lock", time.Now(), 30*time.Second)
		if n := len(z.children(zkQueue(name))); n != 1 {
			t.Errorf("after %d lost replies there are %d requests, want 1", lost+1, n)
		}
		if _, err := other.Mutex(name).TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("after %d lost replies another client gets %v; want ErrHeld", lost+1, err)
		}
		mustUnlock(t, l)
		z.await(name, 0)
	}
}

// zkCutCreate: the create was not executed, and is sent again.
func zkCutCreate(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	c := zkOpen(t, s.URL, "", time.Minute)
	for _, bytes := range []int{0, 1, 20, 60, 100} {
		name := fmt.Sprint("cut-create-", bytes)
		z.make(zkQueue(name), 0)
		mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
		cut := c.p.CutAfter(netfault.ToServer, bytes)
		l := steps.MustLock(t, c.Mutex(name))
		await.Closed(t, "the cut", cut)
		if n := len(z.children(zkQueue(name))); n != 1 {
			t.Errorf("%d requests stand there, want 1", n)
		}
		mustUnlock(t, l)
		z.await(name, 0)
	}
}

// zkAbandonedCreate: the node of an abandoned request is removed long before the session would end.
func zkAbandonedCreate(t *testing.T, s *service.Server) {
	z, other := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	for lists := range 3 {
		name := fmt.Sprint("given-up-", lists)
		z.make(zkQueue(name), 0)
		c := zkOpen(t, s.URL, "", time.Minute)
		mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
		heal := c.p.Hold(netfault.ToClient)
		a := steps.Try(t, c.Mutex(name))
		z.await(name, 1)
		start := time.Now()
		a.Cancel()
		a.Within("abandoned Lock", start, zkPrompt)
		if !errors.Is(a.Err, context.Canceled) {
			t.Errorf("abandoned Lock: %v", a.Err)
		}
		for range lists { // replies to the client's next calls are lost too
			drop := c.p.DropReply(name)
			c.p.Cut()
			heal()
			await.Closed(t, "the drop", drop)
		}
		if lists > 0 {
			c.p.Cut()
		}
		heal() // if nothing was cut, the reply arrives late
		steps.Try(t, other.Mutex(name)).Got("Lock of what an orphan could block", start, 30*time.Second)
		if n := len(z.children(zkQueue(name))); n != 1 {
			t.Errorf("%d requests stand there, want 1", n)
		}
	}
}

// zkLostJoin: an earlier copy of the join is in the queue, and blocks nothing, so it is granted.
func zkLostJoin(t *testing.T, s *service.Server) {
	const name = "lost-join"
	z, p := treeOf(t, s), netfault.NewProxy()
	t.Cleanup(p.Close)
	b, err := zkBackend(zkBehind(t, s.URL, p, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	hold, join := steps.Request(name), steps.Request(name)
	g := steps.Acquired(t, b, hold)
	join.Owner, join.Token, join.Mode = hold.ID, g.Token, driver.Shared
	drop := p.DropReply(zkQueue(name) + "/r:")
	if j := steps.Acquired(t, b, join); j.Token != g.Token {
		t.Errorf("the join has the token %d, its hold %d", j.Token, g.Token)
	}
	await.Closed(t, "the drop", drop)
	z.await(name, 2)
	steps.Released(t, b, join)
	steps.Released(t, b, hold)
	z.await(name, 0)
}

// zkOutlived: calls under way when a client is closed leave nothing in the session, which goes on;
// nor does a create whose reply was lost before.
func zkOutlived(t *testing.T, s *service.Server) {
	for _, lost := range []bool{false, true} {
		name := fmt.Sprint("outlived-", lost)
		z, p := treeOf(t, s), netfault.NewProxy()
		t.Cleanup(p.Close)
		z.make(zkQueue(name), 0)
		side := zkOnConn(t, s, p, 20*time.Second, zookeeper.Options{})
		held := steps.Asked(side, name+"-held", 10*time.Second)
		steps.Acquired(t, side, held)
		heal, back, dropped := func() {}, func() {}, (<-chan struct{})(nil)
		if lost {
			back = p.Refuse() // there is no other connection before that is held
			dropped = p.DropReply(zkQueue(name))
		} else {
			heal = p.Hold(netfault.ToClient)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := steps.Acquire(t.Context(), side, steps.Asked(side, name, 10*time.Second))
			ended <- err
		}()
		if lost {
			await.Closed(t, "the drop", dropped)
			heal = p.Isolate()
			back()
		}
		z.await(name, 1)
		side.Backend.Close()
		if err := await.From(t, ended); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("Acquire of a client that was closed: %v", err)
		}
		heal()
		z.await(name, 0)
		z.await(held.Name, 0)
	}
}

// zkLongAway: the reply to a request was lost, and no session could be had for so long that an
// attempt to get one failed. The request holds all the same when it is granted: the removal of its
// first node does not remove its next one.
func zkLongAway(t *testing.T, s *service.Server) {
	const name, ttl, attempt = "long-away", 6 * time.Second, 10 * time.Second
	timeout := zkTimeout(ttl)
	z, p := treeOf(t, s), netfault.NewProxy()
	t.Cleanup(p.Close)
	z.make(zkQueue(name), 0)
	side := zkOnConn(t, s, p, timeout, zookeeper.Options{})
	c, other := steps.ClientOf(t, side, dlock.TTL(ttl)), zkOpen(t, s.URL, "", time.Minute)
	back := p.Refuse() // there is no other connection before that is held
	dropped := p.DropReply(zkQueue(name))
	a := steps.Try(t, c.Mutex(name))
	await.Closed(t, "the drop", dropped)
	heal := p.Isolate()
	defer heal()
	back()
	<-time.After(timeout + attempt + time.Second)
	heal()
	l := a.Got("Lock", time.Now(), 40*time.Second)
	for end := time.Now().Add(9 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if _, err := other.Mutex(name).TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrHeld) || l.Err() != nil {
			t.Fatalf("another client gets %v; the lease is %v", err, l.Err())
		}
	}
	mustUnlock(t, l)
	z.await(name, 0)
}

// zkLateCreate: the request is under way for so long that the client has hung up and sent it again
// on another connection; the late copy leaves no second request.
func zkLateCreate(t *testing.T, s *service.Server) {
	z, other := treeOf(t, s), zkOpen(t, s.URL, "", 20*time.Second)
	for _, up := range []bool{false, true} {
		name := fmt.Sprint("late-create-", up)
		z.make(zkQueue(name), 0)
		c := zkOpen(t, s.URL, "", 20*time.Second)
		mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
		heal := c.p.Hold(netfault.ToServer)
		a := steps.Try(t, c.Mutex(name))
		before := c.p.Counts().Dialed
		if up {
			// a request that does not arrive leaves no trace
			<-time.After(200 * time.Millisecond)
			a.Cancel()
			a.Within("abandoned Lock", time.Now(), zkPrompt)
		} else {
			await.That(t, "the client has hung up", func() bool { return c.p.Counts().Dialed > before || !a.Pending() })
		}
		heal()
		if up {
			steps.Try(t, other.Mutex(name)).Got("Lock of what a late copy could block", time.Now(), 20*time.Second)
			z.await(name, 1) // the copy may have come later than that
			continue
		}
		l := a.Got("Lock", time.Now(), 20*time.Second)
		z.await(name, 1)
		mustUnlock(t, l)
		z.await(name, 0)
	}
}

// zkEarlierSession: the servers still have the request's node of an earlier session when the reply
// to its create is lost. The request does not take that node for its own, which will go with that
// session, and waits behind it.
func zkEarlierSession(t *testing.T, s *service.Server) {
	const name = "earlier-session"
	z, p := treeOf(t, s), netfault.NewProxy()
	t.Cleanup(p.Close)
	z.make(zkQueue(name), 0)
	b, err := zkBackend(zkBehind(t, s.URL, p, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	warm, r := steps.Asked(b, "warm", time.Minute), steps.Waiting(b, name, time.Minute)
	steps.Acquired(t, b, warm)
	steps.Released(t, b, warm)
	// as the create of that session made it
	earlier := z.make(fmt.Sprintf("%s/w:%s:0:", zkQueue(name), r.ID), zk.FlagEphemeral|zk.FlagSequence)
	drop := p.DropReply(zkQueue(name))
	var g driver.Grant
	got := make(chan error, 1)
	go func() {
		var err error
		g, err = steps.Acquire(await.Bounded(t, time.Minute), b, r)
		got <- err
	}()
	await.Closed(t, "the drop", drop)
	await.That(t, "the request waits for the node", func() bool {
		select {
		case err := <-got:
			t.Fatalf("Acquire beside a node of an earlier session: token %d, %v", g.Token, err)
		default:
		}
		return strings.Contains(four(t, s, "wchp"), earlier)
	})
	mustZK(t, "delete", z.Delete(earlier, -1))
	if err := await.From(t, got); err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	z.await(name, 1)
	steps.Released(t, b, r)
	z.await(name, 0)
}

// zkLostUnlock: the node is gone, and Unlock succeeds.
func zkLostUnlock(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	c := zkOpen(t, s.URL, "", time.Minute)
	l := steps.MustLock(t, c.Mutex("lost-unlock"))
	drop := c.p.DropReply(zkQueue("lost-unlock"))
	mustUnlock(t, l)
	await.Closed(t, "the drop", drop)
	z.await("lost-unlock", 0)
	l = steps.MustLock(t, c.Mutex("lost-unlock"))
	cut := c.p.CutAfter(netfault.ToServer, 10)
	mustUnlock(t, l)
	await.Closed(t, "the cut", cut)
	z.await("lost-unlock", 0)
}

// zkLostRead: a read whose connection breaks is repeated on the next one.
func zkLostRead(t *testing.T, s *service.Server) {
	const name = "lost-read"
	c, p := zkOpen(t, s.URL, "", time.Minute), netfault.NewProxy()
	t.Cleanup(p.Close)
	b := zkOnConn(t, s, p, 20*time.Second, zookeeper.Options{})
	steps.MustLock(t, c.Mutex(name))
	for _, way := range []struct {
		what, request string
		p             *netfault.Proxy
		read          func(context.Context) (found bool, err error)
	}{
		{"Inspect", zkQueue(name), c.p, func(ctx context.Context) (bool, error) {
			q, err := c.Inspect(ctx, name)
			return len(q.Holders) == 1, err
		}},
		{"Inspect on a user's connection", zkQueue(name), p, func(ctx context.Context) (bool, error) {
			q, err := b.Inspect(ctx, name)
			return q.Len() == 1, err
		}},
		{"List on a user's connection", "/dlock/locks", p, func(ctx context.Context) (bool, error) {
			names, err := b.List(ctx)
			return slices.Contains(names, name), err
		}},
	} {
		lost := way.p.DropReply(way.request)
		if found, err := way.read(await.Bounded(t, 30*time.Second)); err != nil || !found {
			t.Errorf("%s: found the locked name %t, %v", way.what, found, err)
		}
		await.Closed(t, "a reply was lost to "+way.what, lost)
	}
}

// zkBrokenConnections: a session outlives its connections, and so do its holds and its place in a
// queue.
func zkBrokenConnections(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	holder, waiter := zkOpen(t, s.URL, "", 20*time.Second), zkOpen(t, s.URL, "", 20*time.Second)
	l := steps.MustLock(t, holder.Mutex("broken"))
	first := steps.Try(t, waiter.Mutex("broken"))
	z.await("broken", 2)
	second := steps.Try(t, waiter.Mutex("broken"))
	z.await("broken", 3)
	stood := z.children(zkQueue("broken"))
	for range 8 {
		holder.p.Cut()
		waiter.p.Cut()
		<-time.After(100 * time.Millisecond)
	}
	if err := l.Renew(await.Bounded(t, 30*time.Second)); err != nil || l.Err() != nil {
		t.Fatalf("after its connections broke the lease is %v, %v", err, l.Err())
	}
	if now := z.children(zkQueue("broken")); !sameNames(stood, now) {
		t.Errorf("before the connections broke the nodes were %q, afterwards %q", stood, now)
	}
	// The hand-off happens while the waiter has no connection, so that no event reaches it.
	heal := waiter.p.Refuse()
	waiter.p.Cut()
	mustUnlock(t, l)
	start := time.Now()
	heal()
	next := first.Got("Lock after the wake-up was lost", start, 10*time.Second)
	if !second.Pending() || next.Token() <= l.Token() {
		t.Errorf("the second waiter was granted: %t; tokens %d, then %d", !second.Pending(), l.Token(), next.Token())
	}
	mustUnlock(t, next)
	mustUnlock(t, second.Got("the second Lock", time.Now(), 20*time.Second))
}

func sameNames(a, b []string) bool {
	seen := map[string]int{}
	for _, s := range a {
		seen[s]++
	}
	for _, s := range b {
		seen[s]--
	}
	for _, n := range seen {
		if n != 0 {
			return false
		}
	}
	return true
}

// zkCutClient: a session that ends on the server has ended for the client before; what the client
// holds later is new.
func zkCutClient(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	cut, other := zkOpen(t, s.URL, "", 5*time.Second), zkOpen(t, s.URL, "", time.Minute)
	l := steps.MustLock(t, cut.Mutex("cut"))
	mine := z.children(zkQueue("cut"))
	heal := cut.p.Isolate()
	defer heal()
	next := steps.Try(t, other.Mutex("cut"))
	await.From(t, next.Done)
	if next.Err != nil || l.Err() == nil || next.Lease.Token() <= l.Token() {
		t.Fatalf("another client holds it: %v, %+v; and the one that is cut off has %v", next.Err, next.Lease, l.Err())
	}
	lost(t, l)
	queued := steps.Try(t, cut.Mutex("cut", dlock.TTL(time.Minute))) // while it is cut off
	heal()
	z.await("cut", 2)
	if err := l.Unlock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock of the lost lease: %v", err)
	}
	if next.Lease.Err() != nil || !queued.Pending() {
		t.Errorf("the successor's lease: %v; the client that came back was granted: %t", next.Lease.Err(), !queued.Pending())
	}
	if now := z.children(zkQueue("cut")); sameNames(mine, now) || strings.Contains(strings.Join(now, " "), mine[0]) {
		t.Errorf("the lost request %q is there again: %q", mine, now)
	}
	mustUnlock(t, next.Lease)
	again := queued.Got("Lock after a loss", time.Now(), 20*time.Second)
	if again.Token() <= next.Lease.Token() {
		t.Errorf("tokens %d, then %d", next.Lease.Token(), again.Token())
	}
	mustUnlock(t, again)
}

// zkCutTry: TryLock says that no server answers, long before the session ends; it leaves nothing
// that comes to life when a server answers again.
func zkCutTry(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	c := zkOpen(t, s.URL, "", 25*time.Second)
	mustUnlock(t, steps.MustLock(t, c.Mutex("cut-try")))
	heal := c.p.Isolate()
	defer heal()
	start := time.Now()
	_, err := c.Mutex("cut-try").TryLock(t.Context())
	if took := time.Since(start); err == nil || errors.Is(err, dlock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) || took > 20*time.Second {
		t.Errorf("TryLock returned %v after %s; want an error that no server answered, within 10 s", err, took)
	}
	heal()
	mustUnlock(t, steps.MustLock(t, c.Mutex("cut-try")))
	z.await("cut-try", 0)
}

// zkLongSession: the client asks for twenty hours and the servers give ten, which is known at once:
// a longer TTL than 3/4 of that is refused.
func zkLongSession(t *testing.T, s *service.Server) {
	const most = 10 * time.Hour * 3 / 4
	_, err := dlock.Open(await.Bounded(t, 30*time.Second), s.URL+"?session_timeout=20h", dlock.TTL(8*time.Hour), dlock.Logger(nil))
	if !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), most.Truncate(time.Millisecond).String()) {
		t.Errorf("Open with a TTL of 8 h: %v; want an error that %s are allowed", err, most)
	}
	c := zkOpen(t, s.URL, "?session_timeout=20h", 7*time.Hour)
	l := steps.MustLock(t, c.Mutex("long"))
	if left := time.Until(l.Until()); left > 7*time.Hour || left < 7*time.Hour-time.Minute {
		t.Errorf("the lease has %s of 7 h", left)
	}
	mustUnlock(t, l)
}

// zkTwoOnAConn: a second backend is refused while the first is open, which goes on. The connection
// stays open when its backend is closed, and delivers the user's events all the while.
func zkTwoOnAConn(t *testing.T, s *service.Server) {
	var events atomic.Int64
	conn, err := zookeeper.Connect([]string{s.Addr}, 20*time.Second, zookeeper.ConnectOptions{
		Logger: quietly{}, EventCallback: func(zk.Event) { events.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for range 2 { // the second has the connection once the first is closed
		b, err := zookeeper.New(await.Bounded(t, 30*time.Second), conn, zookeeper.Options{Prefix: "two-on-a-conn"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := zookeeper.New(await.Bounded(t, 30*time.Second), conn, zookeeper.Options{}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a second backend: %v", err)
		}
		r := steps.Asked(b, "mine", 10*time.Second)
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
		b.Close()
	}
	if _, _, err := conn.ZK().Exists("/"); err != nil {
		t.Errorf("Close has closed the connection: %v", err)
	}
	before := events.Load()
	if _, _, _, err := conn.ZK().ExistsW("/two-on-a-conn-event"); err != nil {
		t.Fatal(err)
	}
	treeOf(t, s).make("/two-on-a-conn-event", 0)
	await.That(t, "the user's callback gets the event of its watch", func() bool { return events.Load() > before })
}

// zkLocker holds a name, and prints what becomes of the lease.
var zkLocker = service.NewProgram("zookeeper-locker", func(in *bufio.Scanner, out io.Writer, args []string) error {
	ctx := context.Background()
	c, err := dlock.Open(ctx, args[0], dlock.TTL(zkTTL), dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		l, err := c.Mutex(args[1]).Lock(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "locked")
		if !in.Scan() {
			return nil
		}
		if held := l.Err() == nil && time.Now().Before(l.Until()); held {
			fmt.Fprintln(out, "it seems to hold")
		} else {
			fmt.Fprintln(out, "lost")
		}
		if err := l.Unlock(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
			return err
		}
	}
})

// zkStoppedClient: a process that stood still for longer than its session knows at once that its
// lease is lost, and can lock again.
func zkStoppedClient(t *testing.T, s *service.Server) {
	child := zkLocker.Start(t, s.URL, "stopped")
	child.Expect("locked")
	other := zkOpen(t, s.URL, "", time.Minute)
	for range 2 {
		child.Stop()
		next := steps.Try(t, other.Mutex("stopped")).Got("Lock of what a stopped client held", time.Now(), 20*time.Second)
		child.Say("well?")
		child.Continue()
		child.Expect("lost")
		mustUnlock(t, next)
		child.Expect("locked")
	}
	child.Wait()
}

// zkHandDeleted: the holder detects at a renewal that its node is gone, however many it has.
func zkHandDeleted(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	const holds, ttl = 100, 6 * time.Second
	c, other := zkOpen(t, s.URL, "", ttl), zkOpen(t, s.URL, "", time.Minute)
	leases := make([]*dlock.Lease, holds)
	for i := range leases {
		leases[i] = steps.MustLock(t, c.Mutex(fmt.Sprint("by-hand-", i)))
	}
	for _, i := range []int{0, 57, 99} {
		name := fmt.Sprint("by-hand-", i)
		for _, node := range z.children(zkQueue(name)) {
			mustZK(t, "delete", z.Delete(zkQueue(name)+"/"+node, -1))
		}
		lost(t, leases[i])
		next := steps.Try(t, other.Mutex(name)).Got("Lock of a hold that was deleted by hand", time.Now(), 20*time.Second)
		if err := leases[i].Unlock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Unlock of a lost lease: %v", err)
		}
		if next.Err() != nil || len(z.children(zkQueue(name))) != 1 || next.Token() <= leases[i].Token() {
			t.Errorf("the successor has %v, its token is %d after %d", next.Err(), next.Token(), leases[i].Token())
		}
	}
	for i, l := range leases {
		if i != 0 && i != 57 && i != 99 && l.Err() != nil {
			t.Errorf("lease %d, whose node was not deleted, is %v", i, l.Err())
		}
	}
}

// zkBroken: the holder detects the break at its next renewal, and a waiter is granted; the token is
// the one that the operator saw.
func zkBroken(t *testing.T, s *service.Server) {
	const others, ttl = 150, 6 * time.Second // more than a renewal checks in turn
	c, operator := zkOpen(t, s.URL, "", ttl), zkOpen(t, s.URL, "", time.Minute)
	for i := range others {
		steps.MustLock(t, c.Mutex(fmt.Sprint("beside-broken-", i)))
	}
	for i, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}, {dlock.Force()}} {
		name := fmt.Sprint("broken-", i)
		l, untouched := steps.MustLock(t, c.Mutex(name)), steps.MustLock(t, c.Mutex(name+"-untouched"))
		if err := operator.Break(await.Bounded(t, 30*time.Second), name, l.Token()+1, opts...); !errors.Is(err, dlock.ErrNotHeld) {
			t.Errorf("Break with a wrong token: %v", err)
		}
		if i == 2 { // the operator gets no reply
			operator.p.DropReply("a hold was broken")
		}
		if err := operator.Break(await.Bounded(t, 30*time.Second), name, l.Token(), opts...); err != nil {
			t.Fatalf("Break: %v", err)
		}
		start := time.Now()
		waiter := steps.Try(t, operator.Mutex(name))
		lost(t, l)
		if took := time.Since(start); took > ttl {
			t.Errorf("the holder has learned of it after %s", took)
		}
		next := waiter.Got("Lock of a broken hold", start, 15*time.Second)
		if next.Token() <= l.Token() || untouched.Err() != nil {
			t.Errorf("the successor's token is %d after %d; the other lease is %v", next.Token(), l.Token(), untouched.Err())
		}
	}
}

// zkUnlockBroken: the release of a hold that an operator has broken returns ErrLost, although no
// proof has detected the break yet; and nothing of the hold is left.
func zkUnlockBroken(t *testing.T, s *service.Server) {
	z, operator := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	b, err := zkBackend(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for i, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
		name := fmt.Sprint("unlock-broken-", i)
		// they are not renewed
		hold, join := steps.Asked(b, name, 10*time.Minute), steps.Asked(b, name, 10*time.Minute)
		g := steps.Acquired(t, b, hold)
		join.Owner, join.Token = hold.ID, g.Token
		steps.Acquired(t, b, join)
		if err := operator.Break(await.Bounded(t, 30*time.Second), name, g.Token, opts...); err != nil {
			t.Fatal(err)
		}
		for what, r := range map[string]driver.Request{"its join": join, "the hold": hold} {
			if err := b.Release(await.Bounded(t, 30*time.Second), r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release of a broken hold, %s: %v; want ErrLost", what, err)
			}
		}
		z.await(name, 0)
	}
}

// zkBrokenUnseen: a client that was cut off while its turn came, and whose hold was broken, holds
// nothing when it is back.
func zkBrokenUnseen(t *testing.T, s *service.Server) {
	const name, ttl = "broken-unseen", 6 * time.Second
	z, c, other := treeOf(t, s), zkOpen(t, s.URL, "", ttl), zkOpen(t, s.URL, "", time.Minute)
	l := steps.MustLock(t, other.Mutex(name))
	waiter := steps.Try(t, c.Mutex(name))
	z.await(name, 2)
	heal := c.p.Isolate()
	defer heal()
	mustUnlock(t, l)
	q, err := other.Inspect(await.Bounded(t, 30*time.Second), name)
	if err != nil || len(q.Holders) != 1 {
		t.Fatalf("%+v, %v", q, err)
	}
	token := q.Holders[0].Token
	if err := other.Break(await.Bounded(t, 30*time.Second), name, token); err != nil {
		t.Fatal(err)
	}
	// when it is back it has to prove its session before it is granted
	<-time.After(ttl/2 + 100*time.Millisecond)
	heal()
	next := waiter.Got("Lock of a broken hold", time.Now(), 20*time.Second)
	if next.Token() <= token {
		t.Errorf("the request that was broken with token %d is granted with %d", token, next.Token())
	}
	mustUnlock(t, next)
}

// zkForeign: foreign nodes in the queue's directory are ignored.
func zkForeign(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	c, other := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", time.Minute)
	const id = "0123456789abcdef0123456789abcdef"
	for _, child := range []string{
		"x", "0000000000", "w", "w:", "w:0000000000", "r::0:0000000000", "w:" + id, "w:" + id + ":", "w:" + id[1:] + ":0:0000000000",
		"w:" + id + ":x:0000000000", "w:" + id + ":-1:0000000000", "w:" + id + ":99999999999999999999:0000000000", "q:" + id + ":0:0000000000",
		"w:" + id + ":0:00000000", "w:" + id + ":0:abcdefghij", "w:" + id + ":0:" + id + ":0000000000", "w:" + id + ":0:" + id + ":x:0000000000",
		"lock-", "lock-1", "read-0000000001", "é\u2028", "w:" + strings.ToUpper(id) + ":0:0000000000",
	} {
		z.make(zkQueue("foreign")+"/"+child, 0)
	}
	z.make(zkQueue("foreign")+"/read-", zk.FlagEphemeral|zk.FlagSequence)
	foreign := len(z.children(zkQueue("foreign")))
	for range 3 {
		l, err := c.Mutex("foreign").TryLock(await.Bounded(t, 30*time.Second))
		if err != nil {
			t.Fatalf("TryLock among foreign children: %v", err)
		}
		if _, err := other.Mutex("foreign").TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("TryLock of a held name: %v", err)
		}
		waiter := steps.Try(t, other.Mutex("foreign"))
		z.await("foreign", foreign+2)
		q, err := c.Inspect(await.Bounded(t, 30*time.Second), "foreign")
		if err != nil || len(q.Holders) != 1 || len(q.Waiters) != 1 {
			t.Errorf("Inspect: %v, %d holders, %d waiters", err, len(q.Holders), len(q.Waiters))
		}
		mustUnlock(t, l)
		mustUnlock(t, waiter.Got("Lock", time.Now(), 10*time.Second))
	}
	z.await("foreign", foreign)
}

// zkNoParents: the nodes above the requests are removed again and again, and made again.
func zkNoParents(t *testing.T, s *service.Server) {
	const clients, rounds = 2, 60
	z := treeOf(t, s)
	stop, stopped := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	removed := map[string]int{}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return removed["/vanish/locks/shared"] >= 3 && removed["/vanish/locks/own-0"] >= 3 && removed["/vanish/locks"] >= 3
	}
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			for _, path := range []string{"/vanish/locks/shared", "/vanish/locks/own-0", "/vanish/locks/own-1", "/vanish/locks", "/vanish"} {
				if z.Delete(path, -1) == nil {
					mu.Lock()
					removed[path]++
					mu.Unlock()
				}
			}
		}
	}()
	var in, begun, turns atomic.Int32
	var wg sync.WaitGroup
	for i := range clients {
		c := zkOpen(t, s.URL, "?prefix=vanish", time.Minute)
		wg.Go(func() {
			// the removal may be slower than the locks
			for n := 0; n < rounds || n < 20*rounds && !enough(); n++ {
				name := "shared"
				if n%2 == 0 {
					name = fmt.Sprint("own-", i)
					<-time.After(5 * time.Millisecond) // no request stands
				} else {
					begun.Add(1)
				}
				l, err := c.Mutex(name).Lock(await.Bounded(t, 30*time.Second))
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				if name == "shared" {
					if in.Add(1) != 1 {
						t.Errorf("two hold it")
					}
					turns.Add(1)
					in.Add(-1)
				}
				if err := l.Unlock(await.Bounded(t, 30*time.Second)); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			}
		})
	}
	await.All(t, &wg)
	close(stop)
	await.From(t, stopped)
	if !enough() || turns.Load() != begun.Load() || turns.Load() < clients*rounds/2 {
		t.Errorf("removed in between: %v; %d turns of %d", removed, turns.Load(), begun.Load())
	}
}

// zkNothingLeft: names whose locks were released and whose waits were abandoned leave no node.
func zkNothingLeft(t *testing.T, s *service.Server) {
	z := treeOf(t, s)
	c, other := zkOpen(t, s.URL, "?prefix=left", time.Minute), zkOpen(t, s.URL, "?prefix=left", time.Minute)
	for i := range 50 {
		name := fmt.Sprint("n", i)
		l := steps.MustLock(t, c.Mutex(name))
		if i%5 == 0 {
			a := steps.Try(t, other.Mutex(name))
			if i%10 == 0 {
				a.Cancel()
				await.From(t, a.Done)
				mustUnlock(t, l)
				continue
			}
			mustUnlock(t, l)
			l = a.Got("Lock", time.Now(), 10*time.Second)
		}
		mustUnlock(t, l)
	}
	await.That(t, "no name is left", func() bool { return len(z.children("/left/locks")) == 0 })
	if err := errors.Join(c.Close(), other.Close()); err != nil {
		t.Errorf("Close: %v", err)
	}
	// Close waits for the server for 2 s. Without it the sessions end after 84 s.
	await.That(t, "no session is left", func() bool { return len(z.children("/left/sessions")) == 0 })
}

// watchesOf returns how many watches the server has, except those of notice nodes.
func watchesOf(t service.T, s *service.Server) (n int) {
	t.Helper()
	notice := false
	for line := range strings.Lines(four(t, s, "wchp")) { // each path, and below it the sessions
		if strings.HasPrefix(line, "/") {
			notice = strings.HasSuffix(strings.TrimSpace(line), noticeSuffix)
		} else if strings.HasPrefix(line, "\t") && !notice {
			n++
		}
	}
	return n
}

// TestZooKeeperWatches: the client library cannot remove a watch; a great many abandoned waits
// behind one holder make no more of them.
func TestZooKeeperWatches(t *testing.T) {
	const waits, abreast = 400, 8
	s := service.StartOwn(t, ZooKeeper)
	holder, c, z := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", time.Minute), treeOf(t, s)
	l := steps.MustLock(t, holder.Mutex("long"))
	mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
	before, goroutines := watchesOf(t, s), runtime.NumGoroutine()
	var wg sync.WaitGroup
	for i := range abreast {
		wg.Go(func() {
			for n := range waits / abreast {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(5+(i+n)%7)*time.Millisecond)
				if _, err := c.Mutex("long").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Lock of a held name: %v", err)
				}
				cancel()
			}
		})
	}
	await.All(t, &wg)
	z.await("long", 1)
	await.That(t, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	after := watchesOf(t, s)
	t.Logf("%d watches before %d waits, %d after", before, waits, after)
	if after > before+4 {
		t.Errorf("%d watches before %d waits, %d after", before, waits, after)
	}
	const alone = 40 // a wait is a create, a listing and a delete: the watch is set already
	calls := c.p.Counts().RoundTrips
	for range alone {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		c.Mutex("long").Lock(ctx)
		cancel()
		z.await("long", 1)
	}
	if n := c.p.Counts().RoundTrips - calls; n > 3*alone+alone/4 {
		t.Errorf("%d waits made %d round trips; want %d", alone, n, 3*alone)
	}
	a := steps.Try(t, c.Mutex("long"))
	z.await("long", 2)
	mustUnlock(t, l)
	mustUnlock(t, a.Got("Lock", time.Now(), 10*time.Second))
}
