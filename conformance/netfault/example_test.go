package netfault_test

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

// dial opens a client of a service, which connects with the dialer.
func dial(func(ctx context.Context, network, addr string) (net.Conn, error)) (driver.Backend, error) {
	return nil, nil
}

// A harness for a driver whose service is reached by TCP: each client has a proxy of its own.
func Example() {
	var proxies sync.Map // by backend
	of := func(b driver.Backend) *netfault.Proxy {
		p, _ := proxies.Load(b)
		return p.(*netfault.Proxy)
	}
	_ = conformance.Harness{
		Open: func(t conformance.T) driver.Backend {
			p := netfault.NewProxy()
			t.Cleanup(p.Close)
			b, err := dial(p.Dial)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
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
				if err := r.Replay(""); err != nil {
					t.Errorf("replay: %v", err)
				}
			}
		},
		Calls:       func(b driver.Backend) int64 { return of(b).Counts().RoundTrips },
		Connections: func(b driver.Backend) int { return of(b).Counts().Open },
		Without:     []string{"Restart", "Stored", "StepClock", "OpenPrefixed"},
	}
}
