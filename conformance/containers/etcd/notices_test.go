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

// hearsOfBreak: the context of a hold ends within a second after an operator broke the hold, long
// before its next renewal, and others are in at once.
func hearsOfBreak(t *testing.T, holder, operator *dlock.Client, name, seenAs string) {
	t.Helper()
	hearsOfBreakWithin(t, time.Second, holder, operator, name, seenAs)
}

func hearsOfBreakWithin(t *testing.T, most time.Duration, holder, operator *dlock.Client, name, seenAs string) {
	t.Helper()
	for _, force := range []bool{true, false} {
		for try := 0; ; try++ {
			took, still := breakHeard(t, holder, operator, name, seenAs, force)
			if took <= most+still {
				break
			}
			if try == 2 || still < 100*time.Millisecond {
				t.Errorf("%s: force %t: the holder heard of the break %s after it; the process stood still for %s", name, force, took, still)
				break
			}
		}
	}
}

// breakHeard breaks a hold, and says how long it took until its context ended.
func breakHeard(t *testing.T, holder, operator *dlock.Client, name, seenAs string, force bool) (took, still time.Duration) {
	t.Helper()
	held := steps.MustLock(t, holder.Mutex(name, dlock.TTL(30*time.Second)))
	if err := held.Renew(t.Context()); err != nil { // the next one is 10 s away
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
		t.Fatal("the holder has not heard of the break after a minute")
	}
	took, still = time.Since(start), stood()
	if err := context.Cause(ctx); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("the context ended with %v", err)
	}
	next := steps.MustLock(t, operator.Mutex(seenAs))
	if all := time.Since(start); all > 5*time.Second+10*still {
		t.Errorf("%s: force %t: the next was in %s after the break", name, force, all)
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	return took, still
}

// etcdBreakHeard: in whatever way the client was opened, however many locks it holds, and though it
// had held nothing for a while.
func etcdBreakHeard(t *testing.T, s *service.Server) {
	operator := steps.ClientOf(t, etcdSideOf(t, s))
	const many = 3000 // more than one lease of etcd's takes, which is 1,000
	holder := etcdSideOf(t, s)
	c := steps.ClientOf(t, holder, dlock.TTL(10*time.Minute)) // none is gone because it expired
	leases := steps.HoldMany(t, c, many)
	hearsOfBreak(t, c, operator, "heard/many", "heard/many")
	if n := holder.rpcs.counts()["Notices"]; n != 2 {
		t.Errorf("a client with %d locks asked %d times for notices", many, n)
	}
	steps.MustLive(t, leases)
	// How many of so many Close has the time to see given back is up to the server. What it has not
	// seen is the error, and goes with etcd's leases.
	if err := c.Close(); err != nil {
		t.Log(err)
	}
	await.That(t, "Close gave all back", func() bool {
		names, err := operator.List(t.Context())
		return err == nil && !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "holding/") })
	})
	hearsOfBreak(t, steps.ClientOf(t, etcdByURL(t, netfault.NewProxy(), s.URL)), operator, "heard/by URL", "heard/by URL")
	for _, prefix := range []string{"heard/p/", "heard/%2F"} {
		hearsOfBreak(t, steps.ClientOf(t, rooted(t, s, etcd.Options{Prefix: prefix})), operator, "x", prefix+"x")
	}

	// The stream of watches breaks, is opened again, and what was broken meanwhile is read.
	tp := newTCPProxy(t, s.Addr)
	c = steps.ClientOf(t, tp.side(t))
	for i := range 3 {
		hearsOfBreak(t, c, operator, fmt.Sprint("heard/cut/", i), fmt.Sprint("heard/cut/", i))
		tp.cut()
	}
	held := steps.MustLock(t, c.Mutex("heard/meanwhile", dlock.TTL(time.Minute)))
	tp.set(false, true)
	tp.cut()
	if err := operator.Break(t.Context(), "heard/meanwhile", held.Token(), dlock.Force()); err != nil {
		t.Fatal(err)
	}
	tp.set(false, false)
	back := time.Now()
	if !closes(held.Lost(), 10*time.Second) { // its next renewal is after 20 s
		t.Errorf("what was broken while the network was away is not known after %s", time.Since(back))
	}

	// a client that holds nothing listens to nothing, and listens again when it holds
	idle := etcdSideOf(t, s)
	r := steps.Asked(idle, "heard/idle", etcdTTL)
	for i := range 2 {
		steps.Acquired(t, idle, r)
		await.That(t, "it listens", func() bool { return idle.rpcs.counts()["Notices"] == int64(2*(i+1)) })
		steps.Released(t, idle, r)
		await.That(t, "it listens no more", func() bool { return idle.rpcs.cancels() == int64(i+1) })
		r = steps.Asked(idle, "heard/idle", etcdTTL)
	}
}

// etcdBreakHeardInCluster: also when the member dies that the holder's watches are at.
func etcdBreakHeardInCluster(t *testing.T, c *Cluster) {
	operator := steps.ClientOf(t, c.side(t))
	holders := map[string]*dlock.Client{
		"New": steps.ClientOf(t, c.side(t)),
		"URL": steps.ClientOf(t, etcdByURL(t, netfault.NewProxy(), c.URL())),
	}
	for what, holder := range holders {
		hearsOfBreak(t, holder, operator, "heard/"+what, "heard/"+what)
	}
	for i, m := range c.Members {
		kept := map[string]*dlock.Lease{}
		for what, holder := range holders {
			kept[what] = steps.MustLock(t, holder.Mutex(fmt.Sprint("heard/kept/", what, i)))
		}
		m.Kill(t)
		c.Leader(t)
		for what, holder := range holders {
			await.That(t, "the others serve it", func() bool { return kept[what].Renew(t.Context()) == nil })
			name := fmt.Sprint("heard/", what, "/without ", i)
			// its watch may have been at that member, and be on its way to another
			hearsOfBreakWithin(t, 5*time.Second, holder, operator, name, name)
		}
		m.Restart(t)
		for _, l := range kept {
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
