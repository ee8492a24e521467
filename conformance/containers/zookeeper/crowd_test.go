package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// listings returns how often a directory was listed by the packets of a client.
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

// TestZooKeeperCrowd: thousands of waiters of one client list the directory together, and after a
// cut they watch again some at a time. The client does not mistake its own slowness for a dead
// server: it connects once.
func TestZooKeeperCrowd(t *testing.T) {
	const waiters, ttl, name = 3000, 10 * time.Second, "crowd"
	s := service.StartOwn(t, ZooKeeper)
	z, holder, c := treeOf(t, s), zkOpen(t, s.URL, "", ttl), zkOpen(t, s.URL, "", ttl)
	held := steps.MustLock(t, holder.Mutex(name))
	mustUnlock(t, steps.MustLock(t, c.Mutex("warm")))
	dialled, sent := c.p.Counts().Dialed, c.p.Record()
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
	await.That(t, "all waiters watch", func() bool { return watchesOf(t, s) >= waiters })
	if n := listings(sent); n > waiters/4 {
		t.Errorf("%d waiters that came at once listed the directory %d times", waiters, n)
	} else {
		t.Logf("%d waiters listed the directory %d times", waiters, n)
	}
	if n := c.p.Counts().Dialed - dialled; n > 0 {
		t.Errorf("the client has hung up on a server that answers: %d connections more", n)
	}

	sent = c.p.Record()
	if n := watchesAtATime(t, s, c.p); n > waiters/4 {
		t.Errorf("after a cut %d of %d watches were asked for at once: every other call queues behind them", n, waiters)
	} else {
		t.Logf("after a cut %d watches were asked for at once", n)
	}
	mustUnlock(t, held)
	select {
	case l := <-in:
		mustUnlock(t, l)
	case <-time.After(time.Minute):
		t.Fatal("a minute after the cut no waiter was granted")
	}
	start := time.Now()
	const handOffs = 20
	for range handOffs {
		mustUnlock(t, await.From(t, in))
	}
	t.Logf("%d hand-offs after that took %s", handOffs, time.Since(start))
	await.That(t, "all waiters watch again", func() bool { return watchesOf(t, s) >= waiters-handOffs-2 })
	if n := listings(sent); n > handOffs+20 {
		t.Errorf("after a cut %d waiters listed the directory %d times for %d hand-offs", waiters, n, handOffs)
	}
	if n := c.p.Counts().Dialed - dialled; n > 2 {
		t.Errorf("one cut made %d connections", n)
	}
	cancel()
	await.All(t, &wg)
}

// watchesAtATime cuts the connections of the proxy, and returns how many watches its client, which
// has a crowd of waiters, asks for before it has answers. No other client has a watch at the
// server.
func watchesAtATime(t *testing.T, s *service.Server, p *netfault.Proxy) int {
	t.Helper()
	const slow = time.Second // long enough to see the packets, too short to be taken for dead
	p.Delay(netfault.ToClient, slow)
	defer p.Delay(netfault.ToClient, 0)
	p.Cut()
	await.That(t, "the watches of the old connection are gone", func() bool { return watchesOf(t, s) == 0 })
	// the first listing serves a few, the next one all others
	await.That(t, "the crowd watches again", func() bool { return watchesOf(t, s) > 30 })
	heal := p.Hold(netfault.ToClient)
	defer heal()
	<-time.After(slow / 2) // the packets arrive, and none is answered
	return watchesOf(t, s)
}

// TestZooKeeperIdleCrowd: waiting costs the same for one and for many, for as long as nothing
// happens.
func TestZooKeeperIdleCrowd(t *testing.T) {
	t.Parallel()
	const ttl, idle, windows = 3 * time.Second, 3 * time.Second, 3
	s := service.StartOwn(t, ZooKeeper)
	z, holder := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	spent := func(waiters int) []int64 {
		name, c := fmt.Sprint("idle-", waiters), zkOpen(t, s.URL, "", ttl)
		l := steps.MustLock(t, holder.Mutex(name))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		before := watchesOf(t, s)
		for range waiters {
			wg.Go(func() { c.Mutex(name).Lock(ctx) })
		}
		z.await(name, waiters+1)
		await.That(t, "all waiters watch", func() bool { return watchesOf(t, s) >= before+waiters })
		sent := c.p.Record()
		var costs []int64
		for range windows {
			calls := c.p.Counts().RoundTrips
			<-time.After(idle)
			costs = append(costs, c.p.Counts().RoundTrips-calls)
		}
		listed := listings(sent)
		cancel()
		await.All(t, &wg)
		mustUnlock(t, l)
		t.Logf("%d waiters: %d round trips in windows of %s, %d listings", waiters, costs, idle, listed)
		if listed > 10 { // all list once more, after the last arrival, and share that
			t.Errorf("%d idle waiters listed the directory %d times", waiters, listed)
		}
		return costs
	}
	var one, many []int64
	var wg sync.WaitGroup
	wg.Go(func() { one = spent(1) })
	wg.Go(func() { many = spent(400) })
	await.All(t, &wg)
	if t.Failed() {
		return // one of them has not measured
	}
	// A window of a busy machine sees too little, and the first ones see the rest of the crowd's
	// arrival.
	if all, single := slices.Min(many), slices.Max(one); all > single+single/2+5 {
		t.Errorf("while nothing happens one waiter costs %d round trips, 400 cost %d", single, all)
	}
}
