package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/etcd"
)

// seesBreak requires that the context of a hold ends within a second after an operator broke the
// hold, long before its next renewal, and that the next request is granted at once.
func seesBreak(t *testing.T, holder, operator *dlock.Client, name, seenAs string) {
	t.Helper()
	seesBreakWithin(t, time.Second, holder, operator, name, seenAs)
}

func seesBreakWithin(t *testing.T, most time.Duration, holder, operator *dlock.Client, name, seenAs string) {
	t.Helper()
	for _, force := range []bool{true, false} {
		for try := 0; ; try++ {
			took, still := breakSeen(t, holder, operator, name, seenAs, force)
			if took <= most+still {
				break
			}
			if try == 2 || still < 100*time.Millisecond {
				t.Errorf("%s: force %t: the holder learned of the break after %s; the process stalled for %s", name, force, took, still)
				break
			}
		}
	}
}

// breakSeen breaks a hold, and returns how long it took until the context of the hold ended.
func breakSeen(t *testing.T, holder, operator *dlock.Client, name, seenAs string, force bool) (took, still time.Duration) {
	t.Helper()
	held := steps.MustLock(t, holder.Mutex(name, dlock.TTL(30*time.Second)))
	if err := held.Renew(t.Context()); err != nil { // the next renewal is 10 s away
		t.Fatal(err)
	}
	ctx := held.Context(t.Context())
	var opts []dlock.BreakOption
	if force {
		opts = append(opts, dlock.Force())
	}
	stood := steps.MeasureStalls()
	start := time.Now()
	if err := operator.Break(t.Context(), seenAs, held.Token(), opts...); err != nil {
		t.Fatalf("Break: %v", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Fatal("the holder has not learned of the break after a minute")
	}
	took, still = time.Since(start), stood()
	if err := context.Cause(ctx); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("the context ended with %v", err)
	}
	next := steps.MustLock(t, operator.Mutex(seenAs))
	if all := time.Since(start); all > 5*time.Second+10*still {
		t.Errorf("%s: force %t: the next request was granted %s after the break", name, force, all)
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	return took, still
}

// etcdBreakNotified: a client learns of a break in whatever way it was opened, however many locks
// it holds, and although it had held no lock for a while.
func etcdBreakNotified(t *testing.T, s *service.Server) {
	operator := steps.ClientOf(t, etcdSideOf(t, s))
	const many = 3000 // more than the 1,000 of one etcd lease
	holder := etcdSideOf(t, s)
	c := steps.ClientOf(t, holder, dlock.TTL(10*time.Minute)) // so that none ends by expiry
	leases := steps.HoldMany(t, c, many)
	seesBreak(t, c, operator, "notified/many", "notified/many")
	if n := holder.rpcs.counts()["Notices"]; n != 2 {
		t.Errorf("a client with %d locks made %d calls for notices", many, n)
	}
	steps.MustLive(t, leases)
	// How many of the releases are answered in the time of Close depends on the server. The error
	// reports the others, which end with etcd's leases.
	if err := c.Close(); err != nil {
		t.Log(err)
	}
	await.That(t, "all locks were released by Close", func() bool {
		names, err := operator.List(t.Context())
		return err == nil && !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "holding/") })
	})
	seesBreak(t, steps.ClientOf(t, etcdByURL(t, netfault.NewProxy(), s.URL)), operator, "notified/by URL", "notified/by URL")
	for _, prefix := range []string{"notified/p/", "notified/%2F"} {
		seesBreak(t, steps.ClientOf(t, rooted(t, s, etcd.Options{Prefix: prefix})), operator, "x", prefix+"x")
	}

	// The stream of watches breaks, is opened again, and notices of breaks meanwhile are read.
	tp := newTCPProxy(t, s.Addr)
	c = steps.ClientOf(t, tp.side(t))
	for i := range 3 {
		seesBreak(t, c, operator, fmt.Sprint("notified/cut/", i), fmt.Sprint("notified/cut/", i))
		tp.cut()
	}
	held := steps.MustLock(t, c.Mutex("notified/meanwhile", dlock.TTL(time.Minute)))
	tp.set(false, true)
	tp.cut()
	if err := operator.Break(t.Context(), "notified/meanwhile", held.Token(), dlock.Force()); err != nil {
		t.Fatal(err)
	}
	tp.set(false, false)
	back := time.Now()
	if !closes(held.Lost(), 10*time.Second) { // its next renewal is in 20 s
		t.Errorf("a break during the outage is not known after %s", time.Since(back))
	}

	// a client without leases has no watch of notices, and has one again when it holds
	idle := etcdSideOf(t, s)
	r := steps.Asked(idle, "notified/idle", etcdTTL)
	for i := range 2 {
		steps.Acquired(t, idle, r)
		await.That(t, "it watches for notices", func() bool { return idle.rpcs.counts()["Notices"] == int64(2*(i+1)) })
		steps.Released(t, idle, r)
		await.That(t, "it has ended the watch", func() bool { return idle.rpcs.cancels() == int64(i+1) })
		r = steps.Asked(idle, "notified/idle", etcdTTL)
	}
}

// etcdBreakNotifiedInCluster: a client learns of a break even if the member dies that serves its
// watches.
func etcdBreakNotifiedInCluster(t *testing.T, c *Cluster) {
	operator := steps.ClientOf(t, c.side(t))
	holders := map[string]*dlock.Client{
		"New": steps.ClientOf(t, c.side(t)),
		"URL": steps.ClientOf(t, etcdByURL(t, netfault.NewProxy(), c.URL())),
	}
	for what, holder := range holders {
		seesBreak(t, holder, operator, "notified/"+what, "notified/"+what)
	}
	for i, m := range c.Members {
		kept := map[string]*dlock.Lease{}
		for what, holder := range holders {
			kept[what] = steps.MustLock(t, holder.Mutex(fmt.Sprint("notified/kept/", what, i)))
		}
		m.Kill(t)
		c.Leader(t)
		for what, holder := range holders {
			await.That(t, "the other members answer", func() bool { return kept[what].Renew(t.Context()) == nil })
			name := fmt.Sprint("notified/", what, "/without ", i)
			// its watch may have been at that member, and may be on the way to another
			seesBreakWithin(t, 5*time.Second, holder, operator, name, name)
		}
		m.Restart(t)
		for _, l := range kept {
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
