package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// fleet are the masters of Redlock.
type fleet []*service.Server

func startFleet(t service.T, k service.Kind) fleet {
	t.Helper()
	f := make(fleet, 5)
	for i := range f {
		f[i] = service.StartOwn(t, k.With(servers.Durable...))
	}
	return f
}

func (f fleet) url(params string) string {
	return "redlock://" + strings.Join(service.Addrs(f), ",") + "/0?" + params
}

// poolSize is how many connections a client with proxies has to each master.
const poolSize = 3

// fleetClient is a client of the fleet.
type fleetClient struct {
	*redlock.Backend
	clients []goredis.UniversalClient
	proxies []*netfault.Proxy // before each master, if there are any
}

// Close closes all that the client has.
func (s *fleetClient) Close() error {
	err := s.Backend.Close()
	for _, c := range s.clients {
		c.Close()
	}
	for _, p := range s.proxies {
		p.Close()
	}
	return err
}

// client opens a client. Its masters have ten seconds to answer, or a tenth of the TTL, unless the
// options say otherwise: the machine may be busy.
func (f fleet) client(t service.T, o redlock.Options) *fleetClient {
	t.Helper()
	return f.with(t, o, nil)
}

// proxied is client with a proxy before each master.
func (f fleet) proxied(t service.T, o redlock.Options) *fleetClient {
	t.Helper()
	var proxies []*netfault.Proxy
	for range f {
		proxies = append(proxies, netfault.NewProxy())
	}
	s := f.with(t, o, proxies)
	// Faults are to hit connections that are open.
	if _, err := s.Inspect(context.Background(), "warm"); err != nil {
		t.Fatalf("%v", err)
	}
	return s
}

func (f fleet) with(t service.T, o redlock.Options, proxies []*netfault.Proxy) *fleetClient {
	t.Helper()
	if o.NodeTimeout == 0 {
		o.NodeTimeout = 10 * time.Second
	}
	s := &fleetClient{proxies: proxies}
	for i, m := range f {
		set := steps.Newer(&goredis.Options{Addr: m.Addr, ContextTimeoutEnabled: true}, "DialerRetries", 1)
		if proxies != nil {
			set.Dialer = proxies[i].Dial
			// It has as many connections at any time.
			set.PoolSize, set.MinIdleConns = poolSize, poolSize
			steps.Newer(set, "PipelinePoolSize", -1)
		}
		s.clients = append(s.clients, goredis.NewClient(set))
	}
	b, err := redlock.New(s.clients, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	s.Backend = b
	t.Cleanup(func() { s.Close() })
	return s
}

// open is dlock.New with such a client.
func (f fleet) open(t service.T, opts ...dlock.Option) (*dlock.Client, *fleetClient) {
	t.Helper()
	s := f.client(t, redlock.Options{})
	c, err := dlock.New(s, append([]dlock.Option{dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c, s
}

// votes returns the vote of each master for the name: 1 if it has a holder, 0 if not, -1 if it does
// not answer.
func (f fleet) votes(t service.T, name string) []int {
	t.Helper()
	n := make([]int, len(f))
	for i, m := range f {
		c := goredis.NewClient(steps.Newer(&goredis.Options{Addr: m.Addr, ContextTimeoutEnabled: true}, "DialerRetries", 1))
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		v, err := c.Exists(ctx, "dlock:{"+name+"}:redlock").Result()
		cancel()
		c.Close()
		if n[i] = int(v); err != nil {
			n[i] = -1
		}
	}
	return n
}

// clear waits until nothing stands for the name on any master.
func (f fleet) clear(t service.T, name string) {
	t.Helper()
	await.That(t, "nothing stands for "+name, func() bool { return fmt.Sprint(f.votes(t, name)) == fmt.Sprint(make([]int, len(f))) })
}

// tombstones waits until masters know that the request has ended, whatever of it arrives late.
func (f fleet) tombstones(t *testing.T, r driver.Request, some ...int) {
	t.Helper()
	for _, i := range some {
		await.That(t, "there is a tombstone", func() bool {
			return servers.CLIOf(t, f[i]).Exists(t.Context(), "dlock:{"+r.Name+"}:redlock:"+r.ID.String()).Val() == 1
		})
	}
}

// everywhere waits until all masters have it: grants return once a majority has.
func (f fleet) everywhere(t service.T, name string) {
	t.Helper()
	await.That(t, "all masters have "+name, func() bool { return fmt.Sprint(f.votes(t, name)) == "[1 1 1 1 1]" })
}

// get acquires a request that must be granted.
func (s *fleetClient) get(t service.T, r driver.Request) driver.Grant {
	t.Helper()
	g, err := steps.Acquire(context.Background(), s, r)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

func (s *fleetClient) refused(t service.T, r driver.Request, why error) {
	t.Helper()
	if _, err := steps.Acquire(context.Background(), s, r); !errors.Is(err, why) {
		t.Fatalf("Acquire: %v; want %v", err, why)
	}
}

func (s *fleetClient) release(t service.T, r driver.Request) {
	t.Helper()
	if err := s.Release(context.Background(), r); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// abandon makes an Acquire and its Release fail, each with answers of so many masters. The caller
// holds back the others until then: if a grant is answered after the end of its Acquire but before
// the Release, the Release leaves no tombstone.
func (s *fleetClient) abandon(t service.T, r driver.Request, answered int) {
	t.Helper()
	_, err := s.Acquire(context.Background(), r)
	unknown(t, err, answered)
	unknown(t, s.Release(context.Background(), r), answered)
}

// unknown fails the test unless the error leaves the outcome open, and has the number of masters
// that answered.
func unknown(t service.T, err error, answered int) {
	t.Helper()
	for _, certain := range []error{nil, driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld, driver.ErrClosed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, certain) {
			t.Fatalf("error %v matches %v", err, certain)
		}
	}
	if want := fmt.Sprintf("%d of 5 masters answered", answered); !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v; want one that says %q", err, want)
	}
}

// fleetTest is a test that leaves the fleet as it was.
type fleetTest struct {
	name string
	run  func(*testing.T, fleet)
}

func (f fleet) run(t *testing.T, all []fleetTest) {
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			service.Watch(t, f...)
			c.run(t, f)
		})
	}
}

// down kills masters until the test ends.
func (f fleet) down(t *testing.T, some ...int) {
	t.Helper()
	for _, i := range some {
		f[i].Kill(t)
		t.Cleanup(func() { f[i].Restart(t) })
	}
}

// hang stops masters until wake, or the test ends.
func (f fleet) hang(t *testing.T, some ...int) (wake func()) {
	t.Helper()
	wake = sync.OnceFunc(func() {
		for _, i := range some {
			f[i].Continue(t)
		}
	})
	t.Cleanup(wake)
	for _, i := range some {
		f[i].Pause(t)
	}
	return wake
}

// plant makes some masters grant to another client.
func (f fleet) plant(t *testing.T, r driver.Request, some ...int) {
	t.Helper()
	for _, i := range some {
		servers.CLIOf(t, f[i]).Must("SET", "dlock:{"+r.Name+"}:redlock", fmt.Sprintf("!2 %s %s x - 60000 9999999999999 1 %s 1 x", r.ID, r.ID, r.Client), "PX", 60000)
	}
}

// lose loses the next reply of some masters. The connection goes with it.
func (s *fleetClient) lose(some ...int) (lost []<-chan struct{}) {
	for _, i := range some {
		lost = append(lost, s.proxies[i].DropReply("evalsha"))
	}
	return lost
}
