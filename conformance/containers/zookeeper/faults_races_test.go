package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// TestZooKeeperLateJoins: a join of a hold that is just released is granted, or the hold is lost.
func TestZooKeeperLateJoins(t *testing.T) {
	t.Parallel()
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
		await.All(t, &wg)
	}
	t.Logf("%d of %d joins came too late", lost, rounds*abreast)

	over, err := a.Mutex("fixed", dlock.FixedLease(time.Second)).Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	owner := over.Owner()
	for time.Now().Before(over.Until().Add(500 * time.Millisecond)) {
		j, err := b.Mutex("fixed").Lock(dlock.WithOwner(await.Bounded(t, 30*time.Second), owner))
		if err == nil {
			mustUnlock(t, j)
		} else if !errors.Is(err, dlock.ErrLost) {
			t.Fatalf("a join under a fixed lease that has ended: %v", err)
		}
	}
}

// TestZooKeeperCloseRaces: a client is closed in the middle of calls, and its connection breaks in
// the middle of waits that are abandoned; nothing in the process races. It can only fail under the
// race detector.
func TestZooKeeperCloseRaces(t *testing.T) {
	t.Parallel()
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
							if _, err := steps.Acquire(t.Context(), b, r); err != nil {
								return
							}
							b.Inspect(t.Context(), r.Name)
						}
					})
				}
				<-time.After(trip + trip*time.Duration(i)/5)
				b.Close() // and that of the connection, if it is the user's
				await.All(t, &wg)
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
			await.All(t, &wg)
			c.Close()
		}
	})
}
