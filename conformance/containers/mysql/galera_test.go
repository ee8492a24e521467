package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/netfault"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// TestMySQLGalera runs the driver on a Galera cluster, as docs/mysql.md tells it. The last part
// kills a node.
func TestMySQLGalera(t *testing.T) {
	nodes := StartGalera(t)
	migrated(t, nodes[0])
	for _, p := range []struct {
		name string
		run  func(*testing.T, []*service.Server)
	}{
		{"dlock check", galeraCheck},
		{"one writer", galeraOneWriter},
		{"laws with one writer", galeraLaws},
		{"three writers of exclusive locks", galeraThreeWriters},
		{"the writer is killed", galeraWriterKilled},
	} {
		t.Run(p.name, func(t *testing.T) {
			service.Watch(t, nodes...)
			p.run(t, nodes)
		})
	}
}

// galeraCheck: "dlock check" says that it is a Galera cluster.
func galeraCheck(t *testing.T, nodes []*service.Server) {
	for i, n := range nodes {
		steps.NewChecker(t).Wants(fmt.Sprint("node ", i, " of a Galera cluster"), n.URL, map[string][2]string{
			"writers": {"risky", "= a Galera cluster"}, "tables": {"fine", ""}, "rights": {"fine", ""},
		}, "--no-laws")
	}
}

// galeraOneWriter: one node does what a server alone does.
func galeraOneWriter(t *testing.T, nodes []*service.Server) {
	exercise(t, sideOf(t, nodes[0]), "one")
	race(t, nodes[0], "one", 5)
}

// galeraLaws: with one writer the core laws hold, and the storm.
func galeraLaws(t *testing.T, nodes []*service.Server) {
	runs := []string{"storm"}
	for _, l := range conformance.Core() {
		runs = append(runs, l.Name)
	}
	h := mysqlHarness("mariadb, one writer of a Galera cluster", nodes[0], func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return known{byURL(t, behind(t, nodes[0], p, "")).(*mysql.Backend), nodes[0].Addr, p}
	})
	h.Only = func(l conformance.Law) bool { return slices.Contains(runs, l.Name) }
	conformance.Run(t, h)
}

// galeraThreeWriters: exclusive locks exclude, whichever node they are taken on, and their tokens
// grow. Their order is not that of arrival.
func galeraThreeWriters(t *testing.T, nodes []*service.Server) {
	var clients []driver.Backend
	for _, n := range nodes {
		clients = append(clients, sideOf(t, n), sideOf(t, n))
	}
	s := newStorm(t, clients, &killedName{name: "three/a"}, &killedName{name: "three/b"})
	s.begin()
	s.further(100)
	s.end()
	s.nothingIsLeft(clients[0])
}

// galeraWriterKilled: clients reach the cluster by an address that leads to one node, and to
// another one after that was killed. What the first node granted stands on the second, what waits
// gets in in order, and no two hold what one may.
func galeraWriterKilled(t *testing.T, nodes []*service.Server) {
	var to address
	to.node.Store(nodes[0])
	var clients []driver.Backend
	for range 4 {
		clients = append(clients, to.side(t))
	}
	a, b, probe := clients[0], clients[1], to.side(t)

	// A hold of its client, which renews it; one with a time of its own; and some who wait.
	held := steps.ClientOf(t, to.side(t), dlock.TTL(time.Minute)).Mutex("leaves/held")
	lease := steps.MustLock(t, held)
	const fixed = 15 * time.Second
	alone := steps.Asked(a, "leaves/alone", fixed)
	granted := steps.Acquired(t, a, alone)
	first := steps.Asked(a, "leaves/queue", 5*time.Minute)
	head := steps.Acquired(t, a, first)
	q := &queue{t: t, name: "leaves/queue"}
	for i := range 4 {
		q.join(clients[i], probe)
	}
	behind := steps.Waiting(b, "leaves/alone", time.Minute)
	next := waitFor(b, behind)
	await.That(t, "one waits", func() bool { return len(steps.Queue(t, probe, "leaves/alone").Waiters()) == 1 })

	s := newStorm(t, clients, &killedName{name: "leaves/a"}, &killedName{name: "leaves/rw", readers: true}, &killedName{name: "leaves/permits", limit: 3})
	s.begin()
	s.further(20)
	began := time.Now()
	nodes[0].Kill(t)
	to.node.Store(nodes[1])

	// What the first node granted stands on the second.
	await.That(t, "the second node refuses what is held", func() bool { return refuses(t, probe, "leaves/held") })
	away := time.Since(began)
	t.Logf("the second node served %s after the first was killed", away.Round(time.Millisecond))
	for name, token := range map[string]driver.Token{"leaves/held": driver.Token(lease.Token()), first.Name: head.Token} {
		if h := steps.Queue(t, probe, name).Holders(); len(h) != 1 || h[0].Token != token {
			t.Errorf("%s, granted by the first node with token %d, has %+v", name, token, h)
		}
	}
	s.further(20)
	GaleraSynced(t, nodes[1:]...)

	// Its holder goes on, and gives it back.
	await.That(t, "what is held is renewed", func() bool { return lease.Renew(t.Context()) == nil })
	if err := lease.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock of what the first node granted: %v", err)
	}
	again := steps.MustLock(t, held)
	if again.Token() <= lease.Token() {
		t.Errorf("token %d after %d", again.Token(), lease.Token())
	}

	// What is not renewed ends in its time, not before.
	n := await.From(t, next)
	switch until := granted.SentAt.Add(fixed); {
	case n.err != nil:
		t.Errorf("Acquire of what has expired: %v", n.err)
	case n.at.Before(until):
		t.Errorf("a hold of %s ended %s early", fixed, until.Sub(n.at))
	case n.Token <= granted.Token:
		t.Errorf("token %d after %d", n.Token, granted.Token)
	}

	q.kept(mysqlOf(t, nodes[1]).pool(t))
	order := steps.Queue(t, probe, q.name).Waiters()
	steps.Released(t, a, first)
	q.drains(order, head.Token)
	s.end()
	s.nothingIsLeft(probe)
}

// refuses reports whether the cluster says that the name is held. It may not serve yet.
func refuses(t *testing.T, b driver.Backend, name string) bool {
	t.Helper()
	_, err := b.Acquire(t.Context(), steps.Asked(b, name, time.Minute))
	if err == nil {
		t.Fatalf("Acquire of %s, which another holds, was granted", name)
	}
	return errors.Is(err, driver.ErrHeld)
}

// address is where clients reach a cluster: it leads to one node at a time.
type address struct {
	node atomic.Pointer[service.Server]
}

// side opens a client at the address.
func (a *address) side(t service.T) driver.Backend {
	t.Helper()
	c := mysqlOf(t, a.node.Load()).Clone()
	dialBy(c, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, a.node.Load().Addr)
	})
	db := dsn{c}.pool(t)
	b, err := mysql.New(db, mysql.Options{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// arrival is the outcome of a request that waited.
type arrival struct {
	driver.Grant
	err error
	at  time.Time
}

// waitFor sends what becomes of a request.
func waitFor(b driver.Backend, r driver.Request) <-chan arrival {
	c := make(chan arrival, 1)
	go func() {
		g, err := b.Acquire(context.Background(), r)
		c <- arrival{g, err, time.Now()}
	}()
	return c
}

// queue is requests that wait for one name, in order.
type queue struct {
	t        *testing.T
	name     string
	clients  []driver.Backend
	requests []driver.Request
	arrivals []<-chan arrival
}

// join adds a request, which stands when join returns.
func (q *queue) join(b, probe driver.Backend) {
	q.t.Helper()
	r := steps.Waiting(b, q.name, time.Minute)
	q.clients, q.requests = append(q.clients, b), append(q.requests, r)
	q.arrivals = append(q.arrivals, waitFor(b, r))
	await.That(q.t, "one more waits", func() bool { return len(steps.Queue(q.t, probe, q.name).Waiters()) == len(q.requests) })
}

// kept waits until the clients have kept their requests alive since the writer was killed: one that
// was not for ten seconds is at the end of the queue.
func (q *queue) kept(db rower) {
	q.t.Helper()
	await.That(q.t, "what waits is kept alive", func() bool {
		return len(q.requests) == one[int](q.t, db, `SELECT COUNT(*) FROM dlock_requests q JOIN dlock_locks l ON l.prefix = q.prefix AND l.name = q.name
			WHERE q.name = CAST(? AS BINARY) AND q.place > l.head AND q.expires_at > UTC_TIMESTAMP(6) + INTERVAL 6 SECOND`, q.name)
	})
}

// drains holds that the requests get in one after the other, in that order, with tokens that grow.
func (q *queue) drains(order []*driver.Entry, last driver.Token) {
	q.t.Helper()
	at := 0 // how many requests kept their places
	for i, e := range order {
		n := slices.IndexFunc(q.requests, func(r driver.Request) bool { return r.ID == e.ID })
		if n < 0 {
			q.t.Fatalf("%+v waits", e)
		}
		if n == i {
			at++
		}
		a := await.From(q.t, q.arrivals[n])
		if a.err != nil {
			q.t.Fatalf("one who waited: %v", a.err)
		}
		if a.Token <= last {
			q.t.Errorf("token %d after %d", a.Token, last)
		}
		last = a.Token
		for _, later := range order[i+1:] {
			m := slices.IndexFunc(q.requests, func(r driver.Request) bool { return r.ID == later.ID })
			if m >= 0 && len(q.arrivals[m]) > 0 {
				q.t.Errorf("number %d of the queue is in beside number %d", m, n)
			}
		}
		steps.Released(q.t, q.clients[n], q.requests[n])
	}
	q.t.Logf("%d of %d requests are let in in the order of their arrival", at, len(q.requests))
}

// storm is clients that lock at random. Calls may fail, as while a cluster has no writer; none may
// be let in beside a hold that excludes it.
type storm struct {
	t       testing.TB
	names   []*killedName
	clients []driver.Backend
	end     func() // ends it, and says what it was
	work    sync.WaitGroup

	mu     sync.Mutex
	failed map[string]int // calls, by error
}

func newStorm(t testing.TB, clients []driver.Backend, names ...*killedName) *storm {
	return &storm{t: t, names: names, clients: clients, failed: map[string]int{}}
}

// begin begins the storm, which ends with end or with the test.
func (s *storm) begin() {
	ctx, cancel := context.WithCancel(s.t.Context())
	for i := range 3 * len(s.clients) {
		s.work.Go(func() {
			for ctx.Err() == nil {
				s.turn(s.clients[i%len(s.clients)], s.names[i/len(s.clients)%len(s.names)])
			}
		})
	}
	s.end = sync.OnceFunc(func() { cancel(); s.ended() })
	s.t.Cleanup(s.end)
}

// turn takes a lock and gives it back.
func (s *storm) turn(b driver.Backend, n *killedName) {
	r := steps.Waiting(b, n.name, time.Minute)
	r.Limit = n.limit
	if n.limit > 0 || n.readers && rand.IntN(2) == 0 {
		r.Mode = driver.Shared
	}
	r.Wait = rand.IntN(8) > 0
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := b.Acquire(ctx, r)
	if err != nil {
		if !errors.Is(err, driver.ErrHeld) {
			s.fails("Acquire", err)
		}
		return
	}
	if time.Now().Before(g.SentAt.Add(g.TTL)) { // or its grant came too late
		n.enter(&service.Trial{TB: s.t}, r, g, false)
		<-time.After(time.Duration(rand.IntN(2)) * time.Millisecond)
		n.exit(r)
	}
	for {
		err := b.Release(ctx, r)
		if err == nil || errors.Is(err, driver.ErrLost) || ctx.Err() != nil {
			return
		}
		s.fails("Release", err)
	}
}

// fails records that a call failed.
func (s *storm) fails(call string, err error) {
	s.mu.Lock()
	s.failed[call+": "+err.Error()]++
	s.mu.Unlock()
	<-time.After(50 * time.Millisecond)
}

// further waits for n more grants of each name.
func (s *storm) further(n int) {
	s.t.Helper()
	for _, name := range s.names {
		grants := func() int { name.mu.Lock(); defer name.mu.Unlock(); return name.grants }
		from := grants()
		await.That(s.t, name.name+" is granted", func() bool { return grants() >= from+n })
	}
}

// ended waits until the storm is over, and says what it was.
func (s *storm) ended() {
	await.All(s.t, &s.work)
	for _, n := range s.names {
		s.t.Logf("%s: %d grants, the longest pause %s", n.name, n.grants, n.pause.Round(time.Millisecond))
	}
	for text, n := range s.failed {
		s.t.Logf("%d times %s", n, text)
	}
}

// nothingIsLeft waits until the names are free.
func (s *storm) nothingIsLeft(probe driver.Backend) {
	s.t.Helper()
	for _, n := range s.names {
		await.That(s.t, "nothing is left of "+n.name, func() bool { return steps.Queue(s.t, probe, n.name).Len() == 0 })
	}
}
