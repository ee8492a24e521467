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
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/internal/size"
)

// TestMySQLGalera runs the driver on a Galera cluster, as docs/mysql.md describes it. The last part
// kills a node.
func TestMySQLGalera(t *testing.T) {
	nodes := StartGalera(t)
	migrated(t, nodes[0])
	type stage struct {
		name string
		run  func(*testing.T, []*service.Server)
	}
	parts := []stage{
		{"dlock check", galeraCheck},
		{"one writer", galeraOneWriter},
		{"laws with one writer", galeraLaws},
		{"three writers of exclusive locks", galeraThreeWriters},
	}
	if size.Long() { // it is not promised: docs/mysql.md says what was seen
		parts = append(parts, stage{"the writer is killed", galeraWriterKilled})
	}
	for _, p := range parts {
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

// galeraLaws: with one writer the core laws hold, and the storm; in a long run, all.
func galeraLaws(t *testing.T, nodes []*service.Server) {
	open := func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return known{byURL(t, behind(t, nodes[0], p, "")).(*mysql.Backend), nodes[0].Addr, p}
	}
	h := mysqlHarness("mariadb, one writer of a Galera cluster", nodes[0], open)
	// A node that was killed does not come back.
	h.Restart, h.Without = nil, append(h.Without, "Restart")
	if !size.Long() {
		runs := []string{"storm"}
		for _, l := range conformance.Core() {
			runs = append(runs, l.Name)
		}
		h.Only = func(l conformance.Law) bool { return slices.Contains(runs, l.Name) }
	}
	conformance.Run(t, h)
}

// galeraThreeWriters: exclusive locks exclude, whichever node they are taken on, and their tokens
// grow. Their order is not that of arrival.
func galeraThreeWriters(t *testing.T, nodes []*service.Server) {
	var clients []driver.Backend
	for _, n := range nodes {
		clients = append(clients, sideOf(t, n), sideOf(t, n))
	}
	s := newStorm(t, clients, &steps.Held{Name: "three/a"}, &steps.Held{Name: "three/b"})
	s.begin()
	s.further(100)
	s.end()
	s.nothingIsLeft(clients[0])
}

// galeraWriterKilled: clients reach the cluster by an address that leads to one node, and to
// another one after that was killed. Holds that the first node granted stand on the second, waiters
// are granted in order, and there are never two holders.
func galeraWriterKilled(t *testing.T, nodes []*service.Server) {
	var to address
	to.node.Store(nodes[0])
	var clients []driver.Backend
	for range 4 {
		clients = append(clients, to.side(t))
	}
	probe := to.side(t)
	stands := galeraHold(t, to.side(t), probe)
	ends := galeraExpiry(t, clients[0], clients[1], probe)
	passes := galeraQueue(t, clients, probe, nodes[1])
	s := newStorm(t, clients, &steps.Held{Name: "leaves/a"}, &steps.Held{Name: "leaves/rw", Readers: true}, &steps.Held{Name: "leaves/permits", Limit: 3})
	s.begin()
	s.further(20)
	nodes[0].Kill(t)
	to.node.Store(nodes[1])
	stands()
	s.further(20)
	GaleraSynced(t, nodes[1:]...)
	ends()
	passes()
	s.end()
	s.nothingIsLeft(probe)
}

// galeraHold takes a lock, whose client renews it. The result is called when the writer has been
// killed: the hold stands on the next one, and ends there when it is released.
func galeraHold(t *testing.T, b, probe driver.Backend) (stands func()) {
	t.Helper()
	m := steps.ClientOf(t, b, dlock.TTL(time.Minute)).Mutex("leaves/held")
	lease := steps.MustLock(t, m)
	return func() {
		t.Helper()
		began := time.Now()
		await.That(t, "the next writer reports the hold", func() bool { return refuses(t, probe, m.Name()) })
		t.Logf("the next node took statements %s after the writer was killed", time.Since(began).Round(time.Millisecond))
		if h := steps.Queue(t, probe, m.Name()).Holders(); len(h) != 1 || h[0].Token != driver.Token(lease.Token()) {
			t.Errorf("the hold with token %d has become %+v", lease.Token(), h)
		}
		await.That(t, "it is renewed", func() bool { return lease.Renew(t.Context()) == nil })
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		if again := steps.MustLock(t, m); again.Token() <= lease.Token() {
			t.Errorf("token %d after %d", again.Token(), lease.Token())
		}
	}
}

// refuses reports whether the cluster says that the name is held. It may not serve yet.
func refuses(t *testing.T, b driver.Backend, name string) bool {
	t.Helper()
	_, err := steps.Acquire(t.Context(), b, steps.Asked(b, name, time.Minute))
	if err == nil {
		t.Fatalf("Acquire of %s, which another holds, was granted", name)
	}
	return errors.Is(err, driver.ErrHeld)
}

// galeraExpiry takes a lock that is not renewed, for which another client waits. The result is
// called when the writer has been killed: the hold ends in its time, not before.
func galeraExpiry(t *testing.T, b, other, probe driver.Backend) (ends func()) {
	t.Helper()
	const name, ttl = "leaves/alone", 15 * time.Second
	g := steps.Acquired(t, b, steps.Asked(b, name, ttl))
	next := waitFor(other, steps.Waiting(other, name, time.Minute))
	await.That(t, "one waits", func() bool { return len(steps.Queue(t, probe, name).Waiters()) == 1 })
	return func() {
		t.Helper()
		n := await.From(t, next)
		switch until := g.SentAt.Add(ttl); {
		case n.err != nil:
			t.Errorf("Acquire of what has expired: %v", n.err)
		case n.at.Before(until):
			t.Errorf("a hold of %s ended %s early", ttl, until.Sub(n.at))
		case n.Token <= g.Token:
			t.Errorf("token %d after %d", n.Token, g.Token)
		}
	}
}

// galeraQueue takes a lock for which all clients wait. The result is called when the writer has
// been killed: they are granted in the order of the queue.
func galeraQueue(t *testing.T, clients []driver.Backend, probe driver.Backend, next *service.Server) (passes func()) {
	t.Helper()
	q := &queue{t: t, name: "leaves/queue"}
	first := steps.Asked(clients[0], q.name, 5*time.Minute)
	g := steps.Acquired(t, clients[0], first)
	for _, b := range clients {
		q.join(b, probe)
	}
	return func() {
		t.Helper()
		q.kept(mysqlOf(t, next).pool(t))
		s := steps.Queue(t, probe, q.name)
		if h := s.Holders(); len(h) != 1 || h[0].ID != first.ID {
			t.Fatalf("%s has %+v", q.name, h)
		}
		steps.Released(t, clients[0], first)
		q.drains(s.Waiters(), g.Token)
	}
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

// waitFor sends the outcome of a request.
func waitFor(b driver.Backend, r driver.Request) <-chan arrival {
	c := make(chan arrival, 1)
	go func() {
		g, err := steps.Acquire(context.Background(), b, r)
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
	await.That(q.t, "the waiters are kept alive", func() bool {
		return len(q.requests) == one[int](q.t, db, `SELECT COUNT(*) FROM dlock_requests q JOIN dlock_locks l ON l.prefix = q.prefix AND l.name = q.name
			WHERE q.name = CAST(? AS BINARY) AND q.place > l.head AND q.expires_at > UTC_TIMESTAMP(6) + INTERVAL 6 SECOND`, q.name)
	})
}

// drains checks that the requests are granted one after the other, in that order, with tokens that
// grow.
func (q *queue) drains(order []*driver.Entry, last driver.Token) {
	q.t.Helper()
	kept := 0
	for i, e := range order {
		n := slices.IndexFunc(q.requests, func(r driver.Request) bool { return r.ID == e.ID })
		if n < 0 {
			q.t.Fatalf("%+v waits", e)
		}
		if n == i {
			kept++
		}
		a := await.From(q.t, q.arrivals[n])
		if a.err != nil || a.Token <= last {
			q.t.Fatalf("token %d after %d, %v", a.Token, last, a.err)
		}
		last = a.Token
		if in := slices.IndexFunc(q.arrivals, func(c <-chan arrival) bool { return len(c) > 0 }); in >= 0 {
			q.t.Errorf("request %d holds beside request %d, or failed", in, n)
		}
		steps.Released(q.t, q.clients[n], q.requests[n])
	}
	q.t.Logf("%d of %d requests had kept their places", kept, len(order))
}

// storm is clients that lock at random. Calls may fail, as while a cluster has no writer; none may
// be granted beside a hold that excludes it.
type storm struct {
	t       testing.TB
	names   []*steps.Held
	clients []driver.Backend
	end     func() // ends it, and logs what it was
	work    sync.WaitGroup

	mu     sync.Mutex
	failed map[string]int // calls, by error
}

func newStorm(t testing.TB, clients []driver.Backend, names ...*steps.Held) *storm {
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

// turn takes a lock and releases it.
func (s *storm) turn(b driver.Backend, n *steps.Held) {
	r := steps.Waiting(b, n.Name, time.Minute)
	r.Limit = n.Limit
	if n.Limit > 0 || n.Readers && rand.IntN(2) == 0 {
		r.Mode = driver.Shared
	}
	r.Wait = rand.IntN(8) > 0
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := steps.Acquire(ctx, b, r)
	if err != nil {
		if !errors.Is(err, driver.ErrHeld) {
			s.fails("Acquire", err)
		}
		return
	}
	if time.Now().Before(g.SentAt.Add(g.TTL)) { // or its grant came too late
		n.Enter(s.t, r, g)
		<-time.After(time.Duration(rand.IntN(2)) * time.Millisecond)
		n.Exit(r)
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
		grants := func() int { n, _ := name.Grants(); return n }
		from := grants()
		await.That(s.t, name.Name+" is granted", func() bool { return grants() >= from+n })
	}
}

// ended waits until the storm has ended, and logs what it was.
func (s *storm) ended() {
	await.All(s.t, &s.work)
	for _, n := range s.names {
		grants, pause := n.Grants()
		s.t.Logf("%s: %d grants, the longest pause %s", n.Name, grants, pause.Round(time.Millisecond))
	}
	for text, n := range s.failed {
		s.t.Logf("%d times %s", n, text)
	}
}

// nothingIsLeft waits until the names are free.
func (s *storm) nothingIsLeft(probe driver.Backend) {
	s.t.Helper()
	for _, n := range s.names {
		await.That(s.t, "nothing is left of "+n.Name, func() bool { return steps.Queue(s.t, probe, n.Name).Len() == 0 })
	}
}
