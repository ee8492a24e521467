package redlock

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// nothingPilesUp: masters that hang cost resources for calls under way, and none for earlier ones.
func nothingPilesUp(t *testing.T, f fleet) {
	f.hang(t, 3, 4)
	m := service.NewMonitor(f[:3]...) // all of them have to answer
	defer m.Stop()
	m.Try(t, "refusals", func(t *service.Trial) { refusalsPileUp(t, f, "piles-"+driver.NewID().String()) })
}

func refusalsPileUp(t *service.Trial, f fleet, name string) {
	const timeout = 2 * time.Second
	a := f.client(t, redlock.Options{NodeTimeout: timeout})
	held := steps.Request(name)
	a.get(t, held)
	grow := func(n int) int {
		for range n {
			a.refused(t, steps.Request(name), driver.ErrHeld)
		}
		r := steps.Request(name + " too")
		a.get(t, r)
		a.release(t, r)
		low := runtime.NumGoroutine()
		for end := time.Now().Add(2 * timeout); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
			low = min(low, runtime.NumGoroutine())
		}
		return low
	}
	few, many := grow(10), grow(300)
	t.Logf("goroutines after 10 refusals %d, after 310 %d", few, many)
	if many > few+10 {
		t.Errorf("with 300 refusals more the goroutines went from %d to %d", few, many)
	}
}

// greet makes each connection greet its master, which takes round trips: an unused connection does
// so at its first use.
func (s *fleetClient) greet(t *testing.T) {
	t.Helper()
	var heals []func()
	for _, p := range s.proxies {
		heals = append(heals, p.Hold(netfault.ToClient))
	}
	var calls sync.WaitGroup
	for range poolSize {
		calls.Go(func() { s.Inspect(context.Background(), "warm") })
	}
	await.That(t, "all connections are in use", func() bool {
		for _, c := range s.clients {
			if n := c.PoolStats(); n.TotalConns-n.IdleConns < poolSize {
				return false
			}
		}
		return true
	})
	for _, heal := range heals {
		heal()
	}
	await.All(t, &calls)
}

func roundTrips(t *testing.T, f fleet) {
	const rounds, many = 50, 1000
	const renewals = "Renew of 100" // too long for one packet: see servers.Pipelines
	a := f.proxied(t, redlock.Options{})
	rs := make([]driver.Request, many)
	for i := range rs {
		rs[i] = steps.Request(fmt.Sprint("trips-", i))
	}
	warm := steps.Request("warm for trips") // so that the masters have the scripts
	a.get(t, warm)
	f.everywhere(t, warm.Name)
	a.Renew(t.Context(), []driver.Request{warm})
	a.release(t, warm)
	f.clear(t, warm.Name)
	for i := range rs {
		a.get(t, rs[i])
	}
	f.everywhere(t, rs[many-1].Name)
	a.greet(t)
	sent := make([]*servers.Pipelines, len(f))
	for i, c := range a.clients {
		sent[i] = &servers.Pipelines{}
		c.AddHook(sent[i])
	}
	trips := func(what string, n int, do func(i int)) {
		t.Helper()
		const greeting = 4 // round trips of a new connection, at most
		var before []netfault.Counts
		for i, p := range a.proxies {
			before = append(before, p.Counts())
			sent[i].Store(0)
		}
		start := time.Now()
		for i := range n {
			do(i)
		}
		took := time.Since(start)
		mark := steps.Request("mark") // behind all that is under way
		a.get(t, mark)
		f.everywhere(t, mark.Name)
		for i, p := range a.proxies {
			now := p.Counts()
			wire := now.RoundTrips - before[i].RoundTrips - greeting*(now.Dialed-before[i].Dialed)
			if got := sent[i].Load() - 1; got > int64(n) || what != renewals && wire-1 > int64(n) {
				t.Errorf("%s %d times sent %d pipelines to master %d, and made %d round trips", what, n, got, i, wire-1)
			}
		}
		a.release(t, mark)
		f.clear(t, mark.Name)
		t.Logf("%s: %s", what, took/time.Duration(n))
	}
	trips("a grant sent again", rounds, func(i int) { a.get(t, rs[i]) })
	trips("a refusal", rounds, func(i int) { a.refused(t, steps.Request(rs[i].Name), driver.ErrHeld) })
	trips(renewals, rounds, func(int) {
		for i, p := range a.Renew(t.Context(), rs[:100]) {
			if p.Err != nil {
				t.Fatalf("Renew of %d: %v", i, p.Err)
			}
		}
	})
	trips("Release", rounds, func(i int) { a.release(t, rs[i]) })
	trips("Acquire", rounds, func(i int) { a.get(t, rs[i]) })
	read := readerOf("trips-read")
	a.get(t, read)
	f.everywhere(t, read.Name)
	readers, joins := make([]driver.Request, rounds), make([]driver.Request, rounds)
	for i := range rounds {
		readers[i], joins[i] = readerOf(read.Name), joinOf(read, driver.Shared)
	}
	trips("a reader beside others", rounds, func(i int) { a.get(t, readers[i]) })
	trips("a join beside others", rounds, func(i int) { a.get(t, joins[i]) })
	trips("Release of a join", rounds, func(i int) { a.release(t, joins[i]) })
	trips("Release of a reader", rounds, func(i int) { a.release(t, readers[i]) })
	a.release(t, read)
	start := time.Now()
	for i, p := range a.Renew(t.Context(), rs) {
		if p.Err != nil {
			t.Fatalf("Renew of %d: %v", i, p.Err)
		}
	}
	t.Logf("Renew of %d: %s", many, time.Since(start))
}
