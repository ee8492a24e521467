package zookeeper

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// TestKazoo: dlock and kazoo's Lock exclude each other, in one order of arrival; dlock and kazoo's
// ReadLock and WriteLock too.
func TestKazoo(t *testing.T) {
	t.Parallel()
	s, python := service.StartOwn(t, ZooKeeper), StartPrograms(t, Kazoo, 2)
	z, url := treeOf(t, s), s.URL+in("kazoo")
	t.Run("order", func(t *testing.T) {
		const long = 40 * time.Second
		p, q := startPeer(t, python[0], s, long), startPeer(t, python[1], s, long)
		a, b := startDlock(t, url, long*3/4), startDlock(t, url, long*3/4)
		for _, lockers := range [][]*locker{{a, p, b, q}, {p, a, q, b}} {
			if took := inOrder(t, z, "order", lockers...); took > long/4 {
				t.Errorf("%d hand-offs took %s", len(lockers), took)
			}
		}
	})
	m := service.NewMonitor(s)
	defer m.Stop()
	t.Run("views", func(t *testing.T) { kazooViews(t, s, z, startPeer(t, python[0], s, time.Minute)) })
	m.Try(t, "kills", func(t *service.Trial) {
		lockers := []*locker{startPeer(t, python[0], s, peerSession), startPeer(t, python[1], s, peerSession),
			startDlock(t, url, peerSession*3/4), startDlock(t, url, peerSession*3/4)}
		mix(t, 60, false, func(l *locker) bool { return l == lockers[0] || l == lockers[2] }, lockers...)
	})
	t.Run("readers", func(t *testing.T) {
		url := s.URL + in("kazoo-rw")
		readersAndWriters(t, z, startPeer(t, python[0], s, time.Minute), startDlock(t, url, 30*time.Second), startDlock(t, url, 30*time.Second), startPeer(t, python[1], s, time.Minute))
	})
	m.Try(t, "readers and writers", func(t *service.Trial) {
		url := s.URL + in("kazoo-rw")
		lockers := []*locker{startPeer(t, python[0], s, peerSession), startPeer(t, python[1], s, peerSession),
			startDlock(t, url, peerSession*3/4), startDlock(t, url, peerSession*3/4)}
		mix(t, 60, true, func(l *locker) bool { return l == lockers[0] || l == lockers[2] }, lockers...)
	})
	t.Run("a reader of kazoo's", func(t *testing.T) {
		// kazoo's plain locks do not wait for it; dlock's do
		p, a := startPeer(t, python[0], s, time.Minute), zkOpen(t, s.URL, in("kazoo"), 10*time.Second)
		p.do("read-lock", "reader")
		if _, err := a.Mutex("reader").TryLock(await.Context(t)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("TryLock beside a reader: %v", err)
		}
		p.do("read-unlock", "reader")
		mustUnlock(t, steps.MustLock(t, a.Mutex("reader")))
	})
}

// kazooViews: each side sees the other's requests, and dlock changes nothing of kazoo's.
func kazooViews(t *testing.T, s *service.Server, z zkTree, python *locker) {
	const name = "view"
	dir, ctx := peerPath(name), await.Context(t)
	c := zkOpen(t, s.URL, in("kazoo"), 10*time.Second, dlock.Label("dlock at work"))
	l := steps.MustLock(t, c.Mutex(name))
	if got := python.ask("try", name); got != "held" {
		t.Errorf("kazoo's try of a name that dlock holds: %s", got)
	}
	if got := python.ask("contenders", name); !strings.Contains(got, "dlock at work") {
		t.Errorf("kazoo's contenders are %s", got)
	}
	mustUnlock(t, l)
	python.do("lock", name)
	node := dir + "/" + z.children(dir)[0]
	_, before, err := z.Get(node)
	mustZK(t, "get", err)
	if _, err := c.Mutex(name).TryLock(ctx); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of a name that kazoo holds: %v", err)
	}
	q, err := c.Inspect(ctx, name)
	if err != nil || len(q.Holders) != 1 || !q.Holders[0].Foreign || !strings.HasPrefix(q.Holders[0].Label, "kazoo at work, node ") {
		t.Fatalf("Inspect: %+v, %v", q, err)
	}
	if err := c.Break(ctx, name, q.Holders[0].Token, dlock.Force()); !errors.Is(err, dlock.ErrUnsupported) {
		t.Errorf("Break of kazoo's hold: %v", err)
	}
	_, after, err := z.Get(node)
	mustZK(t, "get", err)
	if *after != *before {
		t.Errorf("kazoo's node was changed: %+v, %+v", before, after)
	}
	python.do("unlock", name)
	mustUnlock(t, steps.MustLock(t, c.Mutex(name)))
}
