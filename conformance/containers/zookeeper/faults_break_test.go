package zookeeper

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// TestZooKeeperBreakMany: a hold with more joins than fit into a transaction is broken.
func TestZooKeeperBreakMany(t *testing.T) {
	t.Parallel()
	const joins, abreast = 1100, 32
	s := service.StartOwn(t, ZooKeeper)
	a, b, operator := zkOpen(t, s.URL, "", time.Minute), zkOpen(t, s.URL, "", 40*time.Second), zkOpen(t, s.URL, "", time.Minute)
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
		if await.All(t, &wg); t.Failed() {
			return
		}
		start := time.Now()
		breaks := func() error {
			return operator.Break(await.Bounded(t, 60*time.Second), name, l.Token(), opts...)
		}
		err := breaks()
		for tries := 1; err != nil && strings.Contains(err.Error(), "did not answer") && tries < 3; tries++ {
			// A busy machine needs longer than a call has: the next one goes on from there.
			if err = breaks(); errors.Is(err, dlock.ErrNotHeld) {
				err = nil
			}
		}
		if err != nil {
			t.Fatalf("Break of a hold with %d joins: %v", joins, err)
		}
		t.Logf("Break took %s", time.Since(start))
		if j, err := operator.Mutex(name).Lock(dlock.WithOwner(await.Bounded(t, 30*time.Second), l.Owner())); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("a join of a broken hold: %v, %v", j, err)
		}
		lost(t, joined[0])
		lost(t, joined[joins-1])
		if len(opts) > 0 {
			mustUnlock(t, steps.MustLock(t, operator.Mutex(name)))
		}
	}
}

// TestZooKeeperBrokenInDoubt: a client whose replies are lost, and which does not know yet where
// its request stands, holds nothing when it is back if that request was broken.
func TestZooKeeperBrokenInDoubt(t *testing.T) {
	t.Parallel()
	const names, ttl = 12, 20 * time.Second
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
		if err != nil || len(q.Holders) != 1 {
			t.Fatalf("%+v, %v", q, err)
		}
		tokens[i] = q.Holders[0].Token
		if err := other.Break(await.Bounded(t, 30*time.Second), name, tokens[i]); err != nil {
			t.Fatal(err)
		}
	}
	// The client has hung up by then, and has to prove its session before a grant.
	<-time.After(ttl/2 + 100*time.Millisecond)
	heal()
	for i, w := range waiters {
		l := w.Got("Lock of a broken hold", time.Now(), 30*time.Second)
		if l.Token() <= tokens[i] {
			t.Errorf("the request that was broken with token %d is granted with %d", tokens[i], l.Token())
		}
		l.Unlock(t.Context())
	}
}

// noticeSuffix follows the name of a session's own node in that of its notice node.
const noticeSuffix = ":notice"

// TestZooKeeperBrokenAtOnce: a holder learns within a second of a break, however long its TTL is
// and however much it holds: from the beginning, after its connection broke, and after its notice
// node was removed. What is left goes with its release, and the next waiter is granted.
func TestZooKeeperBrokenAtOnce(t *testing.T) {
	t.Parallel()
	const holds, ttl = 2000, 30 * time.Second
	s := service.StartOwn(t, ZooKeeper)
	z, c, other := treeOf(t, s), zkOpen(t, s.URL, "", ttl), zkOpen(t, s.URL, "", ttl)
	steps.HoldMany(t, c.Client, holds)
	noticeNodes := func() (all []string) {
		for _, child := range z.children("/dlock/sessions") {
			if strings.HasSuffix(child, noticeSuffix) {
				all = append(all, child)
			}
		}
		return all
	}
	watched := func() bool {
		watches, there := strings.Count(four(t, s, "wchp"), noticeSuffix+"\n"), len(noticeNodes())
		return watches == there && there > 1
	}
	for what, before := range map[string]func(){
		"at first": func() {},
		"after a cut": func() {
			c.p.Cut()
			await.That(t, "it is connected again", func() bool { return c.p.Counts().Open == 1 })
		},
		"after the notice nodes were removed": func() {
			for _, node := range noticeNodes() {
				z.Delete("/dlock/sessions/"+node, -1)
			}
		},
	} {
		for _, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
			before()
			await.That(t, "all sessions watch", watched)
			name := fmt.Sprint(what, len(opts))
			l := steps.MustLock(t, c.Mutex(name))
			ctx := l.Context(t.Context())
			next := steps.Try(t, other.Mutex(name))
			await.That(t, "the next one waits", func() bool { return len(z.children(zkQueue(strings.ReplaceAll(name, " ", "%20")))) == 2 })
			if err := other.Break(await.Bounded(t, 30*time.Second), name, l.Token(), opts...); err != nil {
				t.Fatal(err)
			}
			stop := steps.MeasureStalls()
			start := time.Now()
			<-ctx.Done()
			known := time.Since(start)
			got := next.Got("Lock of a broken hold", start, 20*time.Second)
			took, stalled := time.Since(start), stop()
			t.Logf("%s, %d options: known after %s, the next was in after %s (the machine stood still for %s)", what, len(opts), known, took, stalled)
			if known > time.Second+stalled || took > ttl/6+stalled {
				t.Errorf("%s, %d options: known after %s, the next was in after %s", what, len(opts), known, took)
			}
			mustUnlock(t, got)
		}
	}
}
