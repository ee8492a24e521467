package postgres

import (
	"context"
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
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
	"github.com/dlock-go/dlock/internal/size"
)

// TestPostgresLimits: the driver works with the longest names and labels, with few connections,
// with very long queues, and with very many names.
func TestPostgresLimits(t *testing.T) {
	s := service.StartOwn(t, PostgreSQL)
	inTurn(t, s,
		part{"the longest of all", postgresLongest},
		part{"a crowd with the longest names", postgresLongCrowd},
		part{"thousands of readers at once", postgresManyReaders},
		part{"a long queue", postgresLongQueue},
		part{"many names", postgresManyNames},
	)
}

// longest is the longest label of a request, in its longest form, and long a name of the greatest
// length.
var longest = strings.Repeat("😀", 60)

func long(i int) string { return fmt.Sprintf("%0255d", i) }

// postgresLongest: everything with the longest names, prefixes and labels.
func postgresLongest(t *service.Trial, s *service.Server) {
	prefix := postgres.Options{Prefix: strings.Repeat("p", 255)}
	b, other := side(t, config(t, s.URL), netfault.NewProxy(), prefix), side(t, config(t, s.URL), netfault.NewProxy(), prefix)
	c := steps.ClientOf(t, b, dlock.TTL(time.Minute), dlock.Label(longest))
	held := steps.HoldMany(t, c, 300)
	exercise(t, b, long(0))
	ask := func(b driver.Backend, i int, change func(*driver.Request)) driver.Request {
		r := steps.Waiting(b, long(i), time.Minute)
		r.Label = longest
		change(&r)
		return r
	}
	for i, shared := range []bool{false, true} {
		mode := func(r *driver.Request) {
			if shared {
				r.Mode, r.Limit = driver.Shared, 1
			}
		}
		first := ask(other, i, mode)
		g := steps.Acquired(t, other, first)
		next := ask(b, i, mode)
		got := steps.Acquiring(b, next)
		await.That(t, "it waits", func() bool { return len(steps.Queue(t, other, long(i)).Waiters()) == 1 })
		if !shared {
			joined := ask(b, i, func(r *driver.Request) { r.Owner, r.Token, r.Wait = first.ID, g.Token, false })
			steps.Acquired(t, b, joined)
			if err := steps.Renewed(b, joined); err != nil {
				t.Errorf("renewal of a join: %v", err)
			}
			steps.Released(t, b, joined)
		}
		steps.Released(t, other, first)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if h := steps.Queue(t, b, long(i)).Holders(); len(h) != 1 || h[0].Label != longest {
			t.Errorf("there is %+v", h)
		}
		next.Uncertain = true
		steps.Released(t, b, next)
		g = steps.Acquired(t, b, ask(b, i, mode))
		if err := b.Break(t.Context(), long(i), g.Token, true); err != nil {
			t.Errorf("Break: %v", err)
		}
	}
	steps.MustLive(t, held)
}

// postgresLongCrowd: requests that come at once, and travel together, with the longest names and
// labels.
func postgresLongCrowd(t *service.Trial, s *service.Server) {
	const crowd = 300
	b := side(t, config(t, s.URL), netfault.NewProxy(), postgres.Options{Prefix: strings.Repeat("p", 255)})
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			r := steps.Waiting(b, long(i%(crowd/2)), time.Minute) // two of each
			r.Label = longest
			ctx := await.Bounded(t, await.Patience)
			if _, err := steps.Acquire(ctx, b, r); err != nil {
				t.Errorf("Acquire: %v", err)
			} else if err := b.Release(ctx, r); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
	await.All(t, &wg)
}

// postgresManyReaders: a writer goes, and more readers are granted than one read of the queue
// shows, some of them while they still arrive. Not each of them reads all holders.
func postgresManyReaders(t *service.Trial, s *service.Server) {
	const readers = 550
	b, other := sideOf(t, s), sideOf(t, s)
	writer := steps.Asked(b, "read", time.Minute)
	steps.Acquired(t, b, writer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	grants := make([]driver.Grant, readers)
	for i := range readers {
		side := []*poolSide{b, other}[min(i%8, 1)] // most are of one client
		r := steps.Waiting(side, "read", time.Minute)
		r.Mode = driver.Shared
		wg.Go(func() {
			g, err := steps.Acquire(ctx, side, r)
			if err != nil {
				t.Errorf("a reader: %v", err)
			}
			grants[i] = g
		})
	}
	for len(steps.Queue(t, b, "read").Waiters()) < readers && !t.Failed() {
		<-time.After(50 * time.Millisecond)
	}
	released := time.Now()
	steps.Released(t, b, writer)
	wg.Wait()
	t.Logf("%d readers hold after %s", readers, time.Since(released).Round(time.Millisecond))
	seen := map[driver.Token]bool{}
	for _, g := range grants {
		if seen[g.Token] = true; g.Token == 0 {
			t.Fatal("a reader has no token")
		}
	}
	if len(seen) != readers {
		t.Errorf("%d readers have %d tokens", readers, len(seen))
	}
	held := map[driver.Token]bool{}
	q := steps.Queue(t, b, "read")
	for _, e := range q.Holders() {
		held[e.Token] = true
	}
	now := time.Now()
	for _, g := range grants { // one that lasts less than its TTL is renewed soon, by its holder
		if !held[g.Token] && g.SentAt.Add(g.TTL).After(now) {
			t.Errorf("a reader does not hold, %s before its grant ends", g.SentAt.Add(g.TTL).Sub(now))
		}
	}
	if n := len(q.Waiters()); n > 0 {
		t.Errorf("%d of %d readers wait", n, readers)
	}
}

// postgresLongQueue: a long queue is read whole, in its order.
func postgresLongQueue(t *service.Trial, s *service.Server) {
	const waiters = 6500
	db := poolOf(t, s.URL)
	insertLocks(t, db, "'queue'", 1, true, true)
	insertRequests(t, db, "'queue'::bytea", waiters, 3600)
	for which, b := range map[string]driver.Backend{"own": byURL(t, s.URL), "pool": sideOf(t, s)} {
		q := steps.Queue(t, b, "queue")
		if len(q.Holders()) != 1 || len(q.Waiters()) != waiters {
			t.Fatalf("%s: the queue has %d that hold and %d that wait; want 1 and %d", which, len(q.Holders()), len(q.Waiters()), waiters)
		}
		for i, e := range q.Waiters() {
			if want := fmt.Sprint("number ", i); e.Label != want {
				t.Fatalf("%s: in place %d is %s", which, i, e.Label)
			}
		}
	}
}

// postgresManyNames: List returns very many names, those in use and no others.
func postgresManyNames(t *service.Trial, s *service.Server) {
	names := 60_000
	if size.Long() {
		names = 400_000
	}
	db := poolOf(t, s.URL)
	text := func(kind string) string { return "convert_to('" + kind + "/' || n, 'UTF8')" }
	insertLocks(t, db, text("held"), names/2, true, false)
	insertLocks(t, db, text("waited for"), names/2, false, true)
	insertRequests(t, db, text("waited for"), names/2, 3600)
	insertLocks(t, db, text("free"), 5000, false, false)
	b := sideOf(t, s)
	start := time.Now()
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, name := range all {
		seen[name] = true
	}
	if len(all) != names || len(seen) != names {
		t.Errorf("%d names are listed, %d of them different; want %d", len(all), len(seen), names)
	}
	t.Logf("%d names in %s", names, time.Since(start).Round(time.Millisecond))
	exercise(t, b, "beside many names")
}
