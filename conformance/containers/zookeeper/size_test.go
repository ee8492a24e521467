package zookeeper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	"github.com/dlock-go/dlock/internal/size"
)

// smallBuffer is a jute.maxbuffer for which a few locks are many.
const smallBuffer = 32 << 10

// smallOption sets it on a server, smallParameter in a URL.
var (
	smallOption    = fmt.Sprint("-Djute.maxbuffer=", smallBuffer)
	smallParameter = fmt.Sprint("?jute_maxbuffer=", smallBuffer)
)

// small is a server with a small jute.maxbuffer.
func small() service.Kind {
	k := ZooKeeper
	k.Command = zookeeperCommand("", 0, smallOption)
	return k
}

// names returns n names, each of which ends with its number.
func names(n int, name string) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%05d", name, i))
	}
	return all
}

// longName has 248 bytes, each of which becomes three in a path; shortName is like most names.
var longName = strings.Repeat("ж", 124)

const shortName = "invoices/"

// crowd is a client that holds or waits for each of many names, and joins some.
type crowd struct {
	*zkClient
	wg sync.WaitGroup
}

// gather makes the client lock all names, some of which the holder has. It returns when all of its
// requests stand.
func (c *crowd) gather(t *testing.T, z zkTree, holder *zkClient, all []string) {
	t.Helper()
	before := c.owned(t, z)
	want := len(all) + (len(all)+9)/10
	await.Each(t, 32, all, func(name string) {
		switch name[len(name)-1] {
		case '1':
			steps.MustLock(t, holder.Mutex(name))
			c.wg.Go(func() { c.Mutex(name).Lock(await.Context(t)) })
			return
		case '0':
			l := steps.MustLock(t, c.Mutex(name))
			if _, err := c.RWMutex(name).Read().Lock(l.Context(await.Bounded(t, time.Minute))); err != nil {
				t.Errorf("a join: %v", err)
			}
		default:
			steps.MustLock(t, c.Mutex(name))
		}
	})
	await.That(t, "all requests stand", func() bool { return c.owned(t, z).nodes-before.nodes >= want })
}

// owned are the nodes at the servers, by the sessions that own them.
type owned struct {
	bytes map[int64]int
	nodes int
}

// owned reads all ephemeral nodes.
func (c *crowd) owned(t *testing.T, z zkTree) owned {
	t.Helper()
	o := owned{bytes: map[int64]int{}}
	count := func(path string) {
		_, stat, err := z.Exists(path)
		mustZK(t, "exists", err)
		if stat.EphemeralOwner != 0 {
			o.bytes[stat.EphemeralOwner] += 4 + len(path)
			o.nodes++
		}
	}
	for _, s := range z.children("/dlock/sessions") {
		count("/dlock/sessions/" + s)
	}
	for _, name := range z.children("/dlock/locks") {
		for _, child := range z.children("/dlock/locks/" + name) {
			count("/dlock/locks/" + name + "/" + child)
		}
	}
	return o
}

// bounded fails the test if a session owns too much, or if there are fewer nodes or fewer bytes.
func (o owned) bounded(t *testing.T, buffer, sessions, bytes int) {
	t.Helper()
	most, all := 0, 0
	for _, n := range o.bytes {
		most, all = max(most, n), all+n
	}
	t.Logf("%d nodes, %d bytes of paths in %d sessions, %d in one", o.nodes, all, len(o.bytes), most)
	if most > buffer/2 {
		t.Errorf("one session owns %d bytes of paths, which is more than half of %d", most, buffer)
	}
	if len(o.bytes) < sessions || all < bytes {
		t.Errorf("that is too little to prove anything")
	}
}

// end cuts the client off for good.
func (c *crowd) end() {
	for _, d := range []netfault.Direction{netfault.ToServer, netfault.ToClient} {
		c.p.Vanish(d)
	}
	c.p.Abandon()
}

// TestZooKeeperClientEnds: clients with many locks, waiters and joins die, and the servers continue
// to serve, also after a restart.
func TestZooKeeperClientEnds(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, small())
	zkClientEnds(t, s.URL, s, func() { s.Restart(t) })
}

// TestZooKeeperEnsembleClientEnds is that for servers that replicate the ends of sessions.
func TestZooKeeperEnsembleClientEnds(t *testing.T) {
	t.Parallel()
	e := StartEnsemble(t, smallOption)
	zkClientEnds(t, e.URL(), e.Nodes[0], func() {
		e.AwaitServing(t)
		e.Follower(t).Restart(t)
		e.AwaitServing(t)
	})
}

// awaitSessions waits until clients have at most that many sessions.
func (z zkTree) awaitSessions(n int) {
	z.t.Helper()
	await.That(z.t, fmt.Sprintf("%d sessions are left", n), func() bool {
		left, _, err := z.Children("/dlock/sessions") // a server may have no leader for a moment
		left = slices.DeleteFunc(left, func(child string) bool { return strings.HasSuffix(child, noticeSuffix) })
		return err == nil && len(left) <= n
	})
}

// TestZooKeeperUsualClientEnds is that, in a long run, for a server with the usual jute.maxbuffer
// and as many locks as destroyed it.
func TestZooKeeperUsualClientEnds(t *testing.T) {
	t.Parallel()
	if !size.Long() {
		return
	}
	s := service.StartOwn(t, ZooKeeper)
	z, c, holder := treeOf(t, s), &crowd{zkClient: zkOpen(t, s.URL, "", 20*time.Second)}, zkOpen(t, s.URL, "", 20*time.Second)
	c.gather(t, z, holder, names(3000, longName))
	c.owned(t, z).bounded(t, 0xfffff, 5, 2<<20)
	c.end()
	z.awaitSessions(1)
	s.Restart(t)
	mustUnlock(t, steps.MustLock(t, zkOpen(t, s.URL, "", time.Minute).Mutex(longName)))
}

// TestZooKeeperSessionsClose: in a long run, sessions that a client no longer needs are closed
// after a minute, and the leases that it still has are kept.
func TestZooKeeperSessionsClose(t *testing.T) {
	t.Parallel()
	if !size.Long() {
		return
	}
	s := service.StartOwn(t, small())
	z, c := treeOf(t, s), zkOpen(t, s.URL, smallParameter, 20*time.Second)
	kept := steps.MustLock(t, c.Mutex("kept"))
	leases := steps.HoldMany(t, c.Client, 1000)
	if n := len(z.children("/dlock/sessions")); n < 4 {
		t.Fatalf("1000 locks made %d sessions", n)
	}
	for _, l := range leases {
		mustUnlock(t, l)
	}
	<-time.After(90 * time.Second)
	z.awaitSessions(1)
	steps.MustLive(t, []*dlock.Lease{kept})
	mustUnlock(t, steps.MustLock(t, c.Mutex("again")))
}

func zkClientEnds(t *testing.T, url string, s *service.Server, restart func()) {
	z := treeOf(t, s)
	const ttl = 8 * time.Second // a busy machine keeps that
	open := func() *zkClient { return zkOpen(t, url, smallParameter, ttl) }
	holder := open()
	var gone []*crowd
	for _, all := range [][]string{names(90, longName), names(900, shortName)} {
		c := &crowd{zkClient: open()}
		c.gather(t, z, holder, all)
		gone = append(gone, c)
	}
	gone[0].owned(t, z).bounded(t, smallBuffer, 6, 3*smallBuffer)
	for _, c := range gone {
		c.end()
	}
	z.awaitSessions(1)
	restart()
	c := open()
	for _, name := range []string{names(1, longName)[0], names(1, shortName)[0]} {
		mustUnlock(t, steps.MustLock(t, c.Mutex(name)))
	}
	for _, c := range gone {
		c.Close()
		await.All(t, &c.wg)
	}
}

// TestZooKeeperFullConnection: a user's connection has one session, which takes no more than the
// servers can remove at once, and the error says so. A release makes room.
func TestZooKeeperFullConnection(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, small())
	z, other := treeOf(t, s), zkOpen(t, s.URL, smallParameter, 10*time.Second)
	b := zkOnConn(t, s, netfault.NewProxy(), 12*time.Second, zookeeper.Options{JuteMaxBuffer: smallBuffer})
	var all []driver.Request
	var err error
	for _, name := range names(100, longName) {
		r := steps.Asked(b, name, b.Capabilities().MaxTTL)
		if _, err = steps.Acquire(await.Bounded(t, 30*time.Second), b, r); err != nil {
			break
		}
		all = append(all, r)
	}
	if err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "open a client by a URL") {
		t.Errorf("after %d locks: %v", len(all), err)
	}
	(&crowd{zkClient: other}).owned(t, z).bounded(t, smallBuffer, 1, smallBuffer/4)
	l := steps.MustLock(t, other.Mutex("another client has room"))
	mustUnlock(t, l)
	steps.Released(t, b, all[0])
	again := steps.Asked(b, all[0].Name, b.Capabilities().MaxTTL)
	if _, err := steps.Acquire(await.Bounded(t, 30*time.Second), b, again); err != nil {
		t.Errorf("after a release: %v", err)
	}
	b.proxy.Vanish(netfault.ToServer)
	z.awaitSessions(1)
	s.Restart(t)
	mustUnlock(t, steps.MustLock(t, other.Mutex(all[1].Name)))
}

// requests makes nodes by hand like those of requests, n under each name, which belong to no
// session.
func (z zkTree) requests(dirs []string, n int) {
	z.t.Helper()
	acl := zk.WorldACL(zk.PermAll)
	var ops []any
	send := func(most int) {
		if len(ops) >= most {
			_, err := z.Multi(ops...)
			mustZK(z.t, "make requests", err)
			ops = nil
		}
	}
	for i, dir := range dirs {
		at := "/dlock/locks/" + dir
		if i == 0 {
			z.make(at, 0)
		} else {
			ops = append(ops, &zk.CreateRequest{Path: at, Acl: acl, Flags: zk.FlagPersistent})
		}
		for range n {
			ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/w:%s:0:", at, driver.NewID()), Acl: acl, Flags: zk.FlagSequence})
			send(500)
		}
	}
	send(1)
}

// readAll lists directories, many at a time.
func (z zkTree) readAll(dirs []string) {
	await.Each(z.t, 64, dirs, func(dir string) { z.children("/dlock/locks/" + dir) })
}

// TestZooKeeperManyNames: the size of one answer has a bound that is far off, and a client reads
// everything else in pieces, in the time that a call has. An answer beyond the bound is an error
// that says so.
func TestZooKeeperManyNames(t *testing.T) {
	t.Parallel()
	const many, waiters, received = 60_000, 5000, 128 << 10
	s := service.StartOwn(t, ZooKeeper)
	z := treeOf(t, s)
	c := zkOpen(t, s.URL, "", 10*time.Second)
	z.requests(names(many, "name-"), 1)
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	lister, err := zkBackend(zkBehind(t, s.URL, p, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer lister.Close()
	start := time.Now()
	z.readAll(names(many, "name-"))
	alone := time.Since(start)
	calls := p.Counts().RoundTrips
	start = time.Now()
	in, err := lister.(driver.Lister).List(await.Bounded(t, 5*time.Minute))
	took := time.Since(start)
	t.Logf("List of %d names took %s, the reads alone take %s", many, took, alone)
	if err != nil || len(in) != many || !slices.Contains(in, fmt.Sprintf("name-%05d", many-1)) {
		t.Errorf("List of %d names: %d, %v", many, len(in), err)
	}
	if n := p.Counts().RoundTrips - calls; n > many/200 {
		t.Errorf("List of %d names made %d round trips; want one for 256 of them", many, n)
	}
	if took > alone {
		t.Errorf("List of %d names took %s; to read each takes %s", many, took, alone)
	}
	z.requests([]string{"queue"}, waiters)
	start = time.Now()
	q, err := c.Inspect(t.Context(), "queue")
	if err != nil || q.Len() != waiters {
		t.Errorf("Inspect of a queue of %d: %d, %v", waiters, q.Len(), err)
	}
	t.Logf("Inspect of a queue of %d took %s", waiters, time.Since(start))

	conn, err := zookeeper.Connect([]string{s.Addr}, 30*time.Second, zookeeper.ConnectOptions{Logger: quietly{}, MaxBufferSize: received})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b, err := zookeeper.New(await.Bounded(t, 30*time.Second), conn, zookeeper.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for what, err := range map[string]error{
		"List":    errOf(b.List(await.Bounded(t, 30*time.Second))),
		"Inspect": errOf(b.Inspect(await.Bounded(t, 30*time.Second), "queue")),
		"Acquire": errOf(steps.Acquire(await.Bounded(t, 30*time.Second), b, steps.Asked(b, "queue", 20*time.Second))),
	} {
		if err == nil || !strings.Contains(err.Error(), "larger than this client reads in one piece") {
			t.Errorf("%s over a connection that takes %d bytes: %v", what, received, err)
		}
	}
	steps.Released(t, b, acquired(t, b, "small"))
}

// errOf is the error of a call that returns more.
func errOf[T any](_ T, err error) error { return err }

// acquired is a request that was granted.
func acquired(t *testing.T, b driver.Backend, name string) driver.Request {
	r := steps.Asked(b, name, 20*time.Second)
	steps.Acquired(t, b, r)
	return r
}
