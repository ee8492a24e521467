package zookeeper

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// peerSession is the session timeout of processes that are killed.
const peerSession = 4 * time.Second

// TestCurator: dlock, Curator's InterProcessMutex and zk.Lock exclude each other, in one order of
// arrival; dlock and InterProcessReadWriteLock too.
func TestCurator(t *testing.T) {
	t.Parallel()
	s, java := service.StartOwn(t, ZooKeeper), StartPrograms(t, Curator, 2)
	z, url := treeOf(t, s), s.URL+in("curator")
	t.Run("order", func(t *testing.T) {
		const long = 40 * time.Second
		j, k := startPeer(t, java[0], s, long), startPeer(t, java[1], s, long)
		a, b, g, h := startDlock(t, url, long*3/4), startDlock(t, url, long*3/4), startGo(t, s, long), startGo(t, s, long)
		for _, lockers := range [][]*locker{{a, j, b, g, k}, {j, a, k, h, b, g}, {g, b, j, a, h, k}} {
			if took := inOrder(t, z, "order", lockers...); took > long/4 {
				t.Errorf("%d hand-offs took %s", len(lockers), took)
			}
		}
	})
	m := service.NewMonitor(s)
	defer m.Stop()
	t.Run("views", func(t *testing.T) {
		curatorViews(t, s, z, startPeer(t, java[0], s, time.Minute), startPeer(t, java[1], s, time.Minute))
	})
	m.Try(t, "kills", func(t *service.Trial) {
		lockers := []*locker{startPeer(t, java[0], s, peerSession), startPeer(t, java[1], s, peerSession), startGo(t, s, peerSession),
			startDlock(t, url, peerSession*3/4), startDlock(t, url, peerSession*3/4)}
		mix(t, 50, false, func(l *locker) bool { return l != lockers[1] && l != lockers[4] }, lockers...)
	})
	t.Run("readers", func(t *testing.T) {
		url := s.URL + in("curator-rw")
		readersAndWriters(t, z, startPeer(t, java[0], s, time.Minute), startDlock(t, url, 30*time.Second), startDlock(t, url, 30*time.Second), startPeer(t, java[1], s, time.Minute))
	})
	m.Try(t, "readers and writers", func(t *service.Trial) {
		url := s.URL + in("curator-rw")
		lockers := []*locker{startPeer(t, java[0], s, peerSession), startPeer(t, java[1], s, peerSession),
			startDlock(t, url, peerSession*3/4), startDlock(t, url, peerSession*3/4)}
		mix(t, 60, true, func(l *locker) bool { return l == lockers[0] || l == lockers[2] }, lockers...)
	})
}

// readersAndWriters: readers of both sides are in together, and those that come after a writer wait
// for it. a and d are the peer's, b and c dlock's.
func readersAndWriters(t *testing.T, z zkTree, a, b, c, d *locker) {
	t.Helper()
	const name = "rw"
	a.do("read-lock", name)
	b.do("read-lock", name)
	writer, reader := make(chan string, 1), make(chan string, 1)
	go func() { writer <- c.ask("write-lock", name) }()
	z.awaitAt(peerPath(name), 3)
	go func() { reader <- d.ask("read-lock", name) }()
	z.awaitAt(peerPath(name), 4)
	a.do("read-unlock", name)
	<-time.After(200 * time.Millisecond)
	if len(writer)+len(reader) > 0 {
		t.Errorf("a reader still holds, and %d writers and %d readers behind it are in", len(writer), len(reader))
	}
	b.do("read-unlock", name)
	if got := await.From(t, writer); got != "ok" {
		t.Fatalf("the writer: %s", got)
	}
	<-time.After(200 * time.Millisecond)
	if len(reader) > 0 {
		t.Errorf("a reader is in beside the writer")
	}
	c.do("write-unlock", name)
	if got := await.From(t, reader); got != "ok" {
		t.Fatalf("the reader: %s", got)
	}
	// and the peer's writer waits for a reader of dlock's
	b.do("read-lock", name)
	d.do("read-unlock", name)
	go func() { writer <- a.ask("write-lock", name) }()
	z.awaitAt(peerPath(name), 2)
	<-time.After(200 * time.Millisecond)
	if len(writer) > 0 {
		t.Errorf("the peer's writer is in beside dlock's reader")
	}
	b.do("read-unlock", name)
	if got := await.From(t, writer); got != "ok" {
		t.Fatalf("the peer's writer: %s", got)
	}
	a.do("write-unlock", name)
}

// curatorViews: each side sees the other's requests, and dlock changes nothing of Curator's.
func curatorViews(t *testing.T, s *service.Server, z zkTree, java, revoker *locker) {
	const name = "view"
	dir := peerPath(name)
	z.make(dir, 0)
	_, err := z.Set(dir, []byte("the user's"), -1)
	mustZK(t, "set", err)
	c, other := zkOpen(t, s.URL, in("curator"), 10*time.Second), zkOpen(t, s.URL, in("curator"), 10*time.Second)
	ctx := await.Context(t)

	l := steps.MustLock(t, c.Mutex(name))
	if got := java.ask("try", name); got != "held" {
		t.Errorf("Curator's try of a name that dlock holds: %s", got)
	}
	waiting := make(chan string, 1)
	go func() { waiting <- java.ask("lock", name) }()
	z.awaitAt(dir, 2)
	q, err := c.Inspect(ctx, name)
	if err != nil || len(q.Holders) != 1 || len(q.Waiters) != 1 || q.Holders[0].Foreign || q.Holders[0].Token != l.Token() || !q.Waiters[0].Foreign {
		t.Fatalf("Inspect: %+v, %v; want dlock's holder and Curator's waiter", q, err)
	}
	mustUnlock(t, l)
	if got := await.From(t, waiting); got != "ok" {
		t.Fatalf("Curator's lock: %s", got)
	}

	nodes := z.children(dir)
	if len(nodes) != 1 {
		t.Fatalf("%q stand at %s", nodes, dir)
	}
	node := dir + "/" + nodes[0]
	_, before, err := z.Get(node)
	mustZK(t, "get", err)
	if _, err := c.Mutex(name).TryLock(ctx); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of a name that Curator holds: %v", err)
	}
	a := steps.Try(t, other.Mutex(name))
	z.awaitAt(dir, 2)
	if got := strings.Fields(java.ask("participants", name)); len(got) != 2 || got[0] != node || !strings.HasPrefix(got[1], dir+"/_c_") {
		t.Errorf("Curator's participants are %q; want its own node %s first, then dlock's", got, node)
	}
	q, err = c.Inspect(ctx, name)
	if err != nil || len(q.Holders) != 1 || len(q.Waiters) != 1 || q.Waiters[0].Foreign {
		t.Fatalf("Inspect: %+v, %v; want Curator's holder and dlock's waiter", q, err)
	}
	h := q.Holders[0]
	addr, label, _ := strings.Cut(h.Label, ", ")
	if !h.Foreign || h.Broken || h.TTL != 0 || h.Token != dlock.Token(before.Czxid) || net.ParseIP(addr) == nil || label != "node "+nodes[0] {
		t.Errorf("Inspect shows the holder as %+v", h)
	}
	if names, err := c.List(ctx); err != nil || len(names) != 1 || names[0] != name {
		t.Errorf("List: %q, %v", names, err)
	}
	for _, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
		if err := c.Break(ctx, name, h.Token, opts...); !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), nodes[0]) {
			t.Errorf("Break of Curator's hold: %v; want ErrUnsupported with the node", err)
		}
	}
	a.Cancel()
	a.Within("the wait", time.Now(), 10*time.Second)
	z.awaitAt(dir, 1)
	_, after, err := z.Get(node)
	mustZK(t, "get", err)
	if *after != *before {
		t.Errorf("Curator's node was changed: %+v, %+v", before, after)
	}
	java.do("unlock", name)
	if data, stat, err := z.Get(dir); err != nil || string(data) != "the user's" || stat.Version != 1 {
		t.Errorf("the directory has the data %q (version %d, %v)", data, stat.Version, err)
	}

	// a hold of dlock's can be broken, and revoked by Curator
	for what, end := range map[string]func(*dlock.Lease){
		"break": func(l *dlock.Lease) { mustZK(t, "Break", other.Break(ctx, name, l.Token(), dlock.Force())) },
		"revoke": func(*dlock.Lease) {
			first, _, _ := strings.Cut(revoker.ask("participants", name), " ")
			if got := revoker.call("revoke " + first); got != "ok" {
				t.Errorf("Curator's revoke: %s", got)
			}
		},
	} {
		l := steps.MustLock(t, c.Mutex(name))
		go func() { waiting <- java.ask("lock", name) }()
		z.awaitAt(dir, 2)
		end(l)
		lost(t, l)
		l.Unlock(ctx)
		if got := await.From(t, waiting); got != "ok" {
			t.Errorf("Curator's lock after a %s: %s", what, got)
		}
		java.do("unlock", name)
	}
}
