package containers

import (
	"sync"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
)

// Harness returns a harness of the suite in which each client has a [Proxy] of its own, with all powers of this package: open
// opens a client that reaches its servers through the proxy only. The servers are those that Restart restarts, on their data; it
// is there if all are the test's own.
//
// Name says in the report what the laws ran on, as of Reported. Not every protocol lets a request be replayed on another
// connection: where it does not, set Record to nil.
func Harness(name string, open func(conformance.T, *Proxy) driver.Backend, servers ...*Server) conformance.Harness {
	var proxies sync.Map // by backend
	of := func(b driver.Backend) *Proxy {
		p, ok := proxies.Load(b)
		if !ok {
			panic("containers: a backend that the harness did not open")
		}
		return p.(*Proxy)
	}
	h := conformance.Harness{
		Open: func(t conformance.T) driver.Backend {
			t.Helper()
			p := NewProxy()
			t.Cleanup(p.Close)
			b := open(t, p)
			proxies.Store(b, p)
			return b
		},
		Cut:    func(_ conformance.T, b driver.Backend) func() { return of(b).Isolate() },
		Deafen: func(_ conformance.T, b driver.Backend) func() { return of(b).Hold(ToClient) },
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
	}
	for _, s := range servers {
		if !s.Own() {
			h.Restart = nil
		}
	}
	if len(servers) == 0 {
		h.Restart = nil
	}
	return Reported(name, h)
}

// Reported returns the harness, with what becomes of its laws counted under the name in the last lines of the run.
func Reported(name string, h conformance.Harness) conformance.Harness {
	var laws sync.Map // seen, by the name of their test
	open := h.Open
	h.Open = func(t conformance.T) driver.Backend {
		t.Helper()
		if _, again := laws.LoadOrStore(t.Name(), true); !again {
			t.Cleanup(func() { // what the law opens is closed by then
				s, ok := t.(interface{ Skipped() bool })
				report.law(name, t.Failed(), ok && s.Skipped())
			})
		}
		return open(t)
	}
	return h
}
