package redlock

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

func TestRedlockConformance(t *testing.T) {
	conformance.Run(t, startFleet(t, servers.Redis).harness("redlock", redlock.Options{}))
}

// harness has the laws run on the fleet, with a proxy before each master.
func (f fleet) harness(name string, o redlock.Options) conformance.Harness {
	// A busy machine needs more time than a program's masters do. A tenth of the TTL bounds it all
	// the same: a law that is repeated with twice the TTL gives them twice the time.
	o.RetryDelay, o.NodeTimeout = 10*time.Millisecond, 3*time.Second
	all := func(b driver.Backend, fault func(*netfault.Proxy) func()) (heal func()) {
		var heals []func()
		for _, p := range b.(*fleetClient).proxies {
			heals = append(heals, fault(p))
		}
		return func() {
			for _, h := range heals {
				h()
			}
		}
	}
	// All masters are asked at once: the one with the most calls counts.
	most := func(b driver.Backend, count func(netfault.Counts) int64) (n int64) {
		for _, p := range b.(*fleetClient).proxies {
			n = max(n, count(p.Counts()))
		}
		return n
	}
	return service.Reported(name, conformance.Harness{
		Open: func(t conformance.T) driver.Backend { return f.proxied(t, o) },
		// a new connection and two calls on it fit into a tenth of that on a busy machine
		TTL:       4 * time.Second,
		Partition: func(_ conformance.T, b driver.Backend) func() { return all(b, (*netfault.Proxy).Isolate) },
		HoldReplies: func(_ conformance.T, b driver.Backend) func() {
			return all(b, func(p *netfault.Proxy) func() { return p.Hold(netfault.ToClient) })
		},
		DelayReplies: func(_ conformance.T, b driver.Backend, d time.Duration) {
			for _, p := range b.(*fleetClient).proxies {
				p.Delay(netfault.ToClient, d)
			}
		},
		Record: func(t conformance.T, b driver.Backend) func() {
			return all(b, func(p *netfault.Proxy) func() {
				r := p.Record()
				return func() {
					if err := r.Replay(""); err != nil {
						t.Errorf("replay: %v", err)
					}
				}
			})
		},
		Calls: func(b driver.Backend) int64 { return most(b, func(c netfault.Counts) int64 { return c.RoundTrips }) },
		Connections: func(b driver.Backend) int {
			return int(most(b, func(c netfault.Counts) int64 { return int64(c.Open) }))
		},
		Without: []string{"Restart"}, // one of several masters would be a fault of another kind
	}, f...)
}
