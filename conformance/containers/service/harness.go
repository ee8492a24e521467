package service

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// Harness returns a harness of the suite in which each client has a [Proxy] of its own, with all
// powers of this package: open opens a client that reaches its servers only through the proxy.
// Restart restarts the servers on their data; it is set if all are the test's own.
//
// Name says in the report what the laws ran on, as of [Reported]. Not every protocol lets a request
// be replayed on another connection: if it does not, set Record to nil.
func Harness(name string, open func(conformance.T, *netfault.Proxy) driver.Backend, servers ...*Server) conformance.Harness {
	var proxies sync.Map // by backend
	of := func(b driver.Backend) *netfault.Proxy {
		p, ok := proxies.Load(b)
		if !ok {
			panic("service: a backend that the harness did not open")
		}
		return p.(*netfault.Proxy)
	}
	h := conformance.Harness{
		Open: func(t conformance.T) driver.Backend {
			t.Helper()
			p := netfault.NewProxy()
			t.Cleanup(p.Close)
			b := open(t, p)
			proxies.Store(b, p)
			return b
		},
		Partition:   func(_ conformance.T, b driver.Backend) func() { return of(b).Isolate() },
		HoldReplies: func(_ conformance.T, b driver.Backend) func() { return of(b).Hold(netfault.ToClient) },
		DelayReplies: func(_ conformance.T, b driver.Backend, d time.Duration) {
			of(b).Delay(netfault.ToClient, d)
		},
		Record: func(t conformance.T, b driver.Backend) func() {
			r := of(b).Record()
			return func() {
				t.Helper()
				if err := r.Replay(""); err != nil {
					t.Errorf("replay: %v", err)
				}
			}
		},
		Calls:       func(b driver.Backend) int64 { return of(b).Counts().RoundTrips },
		Connections: func(b driver.Backend) int { return of(b).Counts().Open },
		Restart: func(t conformance.T) {
			t.Helper()
			for _, s := range servers {
				s.Kill(t)
			}
			for _, s := range servers {
				s.Restart(t)
			}
		},
		// the machine's clock is that of all containers
		Without: []string{"StepClock"},
	}
	if len(servers) == 0 || slices.ContainsFunc(servers, func(s *Server) bool { return !s.Own() }) {
		h.Restart = nil
		h.Without = append(h.Without, "Restart")
	}
	return Reported(name, h, servers...)
}

// Reported returns the harness, with the results of its laws on the servers counted under the name
// in the last lines of the run. A law that fails shows what the servers logged meanwhile.
func Reported(name string, h conformance.Harness, servers ...*Server) conformance.Harness {
	h.Done = func(t conformance.T, v conformance.Verdict) {
		t.Helper()
		report.law(name, servers, v)
		for _, s := range servers {
			s.show(t, v.Began)
		}
	}
	return h
}

// alike are the laws that every set-up of a service keeps if one does: either a client keeps them
// by itself, or one step of the service on one queue does, which is the same on every server. More
// servers, which replicate, elect and lag, or other connections to them break these laws in no
// set-up. A new law is not in the list.
var alike = []string{
	"labels", "conflict", "inspect", "owner-not-client", "reenter", "own-name-only", "join", "join-over", "downgrade", "upgrade",
	"readers-together", "neither-starves", "semaphore-limit", "semaphore-smallest", "semaphore-order", "tokens-shared", "raise",
	"break", "break-wrong-token", "break-force", "pre-cancelled", "cancel-prompt", "cancel-answered", "cancelled-wait",
	"same-request-waiting", "loss-first", "after-loss", "unlock-cut-off", "close-cut-off", "close-wakes", "close-leaks-nothing",
	"cost-lock", "cost-wait", "cost-hold", "cost-hand-off",
}

// Beside returns the harness of a set-up of a service that has another set-up on which all laws
// run. This one runs only the laws that it may break although the other keeps them, unless the run
// is long.
func Beside(h conformance.Harness) conformance.Harness {
	if !size.Long() {
		h.Only = func(l conformance.Law) bool { return !slices.Contains(alike, l.Name) }
	}
	return h
}

// OtherConnections returns the harness of a set-up that differs from another one on the same
// servers only by its connections. Unless the run is long, it runs the core laws, and those in
// which a connection matters: calls that break off, what a client learns, and its end.
func OtherConnections(h conformance.Harness) conformance.Harness {
	if !size.Long() {
		runs := map[string]bool{"outage": true, "wait-outage": true, "cancel-prompt": true, "bounded-calls": true,
			"break-force-known": true}
		for _, l := range conformance.Core() {
			runs[l.Name] = true
		}
		h.Only = func(l conformance.Law) bool { return runs[l.Name] || strings.HasPrefix(l.Name, "close-") }
	}
	return h
}
