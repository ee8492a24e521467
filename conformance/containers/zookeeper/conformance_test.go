package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// zkTTL is for leases that have to expire soon: a machine that stands still for a second loses
// them.
const zkTTL = time.Second

// zkBehind is the URL of a server or an ensemble as it is reached through the proxy, with a path
// and parameters.
func zkBehind(t service.T, text string, p *netfault.Proxy, more string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatalf("not a URL")
	}
	hosts := strings.Split(u.Host, ",")
	for i, h := range hosts {
		if hosts[i], err = p.Addr(h); err != nil {
			t.Fatalf("%v", err)
		}
	}
	u.Host = strings.Join(hosts, ",")
	return u.String() + more
}

// zkKnown is a backend whose identity is that of the servers, not of the proxy through which they
// are reached.
type zkKnown struct {
	*zookeeper.Backend
	identity string
	proxy    *netfault.Proxy
}

// Close closes the backend, and its proxy.
func (k zkKnown) Close() error {
	defer k.proxy.Close()
	return k.Backend.Close()
}

// Capabilities are those of the backend, except for the identity.
func (k zkKnown) Capabilities() driver.Capabilities {
	c := k.Backend.Capabilities()
	c.Identity = k.identity
	return c
}

// zkBackend opens the driver by a URL.
func zkBackend(text string) (driver.Backend, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return zkBackendIn(ctx, text)
}

func zkBackendIn(ctx context.Context, text string) (driver.Backend, error) {
	return zkBackendOf(ctx, text, time.Minute)
}

// zkBackendOf is for a client whose locks have that TTL by default.
func zkBackendOf(ctx context.Context, text string, ttl time.Duration) (driver.Backend, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	return driver.Lookup(u.Scheme)(ctx, driver.Config{URL: u, Hosts: strings.Split(u.Host, ","), TTL: ttl, Client: driver.NewID(),
		Logger: slog.New(slog.DiscardHandler)})
}

// zkHarness is [Harness] for the servers of the URL.
func zkHarness(name, url string, servers ...*service.Server) conformance.Harness {
	h := service.Harness(name, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		b, err := zkBackend(zkBehind(t, url, p, ""))
		if err != nil {
			t.Fatalf("%v", err)
		}
		return zkKnown{b.(*zookeeper.Backend), url, p}
	}, servers...)
	h.TTL = zkTTL
	h.Stored = zkStored(servers[0])
	h.OpenPrefixed = zkPrefixed(servers[0])
	// recorded packets belong to the session of their connection; servers ignore them on another
	h.Record = nil
	return h
}

func TestZooKeeperConformance(t *testing.T) {
	s := service.Start(t, ZooKeeper)
	conformance.Run(t, zkHarness("zookeeper", s.URL, s))
}

func TestZooKeeperEnsembleConformance(t *testing.T) {
	e := StartEnsemble(t)
	h := zkHarness("zookeeper, three servers", e.URL(), e.Nodes...)
	restart := h.Restart
	h.Restart = func(t conformance.T) {
		t.Helper()
		restart(t)
		e.AwaitServing(t)
	}
	conformance.Run(t, service.Beside(h))
}

// zkPrefixed opens clients with a prefix.
func zkPrefixed(s *service.Server) func(conformance.T, string) driver.Backend {
	return func(t conformance.T, prefix string) driver.Backend {
		return zkOnConn(t, s, netfault.NewProxy(), 10*time.Second, zookeeper.Options{Identity: s.URL, Prefix: prefix})
	}
}

// zkStored returns how many nodes stand under a name that needs no encoding.
func zkStored(s *service.Server) func(conformance.T, driver.Backend, string) int {
	return func(t conformance.T, _ driver.Backend, name string) int {
		t.Helper()
		c := zkOf(t, s, 30*time.Second)
		defer c.Close()
		names, _, err := c.Children(zkQueue(name))
		if err != nil && err != zk.ErrNoNode {
			t.Fatalf("children of %s: %v", name, err)
		}
		return len(names)
	}
}

// TestZooKeeperTokenBase: the parameter token_base is added to every token.
func TestZooKeeperTokenBase(t *testing.T) {
	t.Parallel()
	steps.TokenBase(t, service.Start(t, ZooKeeper).URL)
}

// TestZooKeeperConnConformance is for a user's connection.
func TestZooKeeperConnConformance(t *testing.T) {
	// of all leases, also of those that must not be lost when the machine stands still
	const ttl = 5 * time.Second
	s := service.Start(t, ZooKeeper)
	h := service.Harness("zookeeper, a connection of the user's", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return zkOnConn(t, s, p, zkTimeout(ttl), zookeeper.Options{Identity: s.URL})
	})
	h.TTL = ttl
	h.Stored = zkStored(s)
	h.OpenPrefixed = zkPrefixed(s)
	h.Record = nil
	conformance.Run(t, service.OtherConnections(h))
}

// zkTimeout is the session timeout of a user's connection whose leases have that TTL at most. The
// TTL is 3 to 15 s.
func zkTimeout(ttl time.Duration) time.Duration { return ttl*4/3 + time.Second + 2*time.Millisecond }

// connSide is a client of the driver over a connection that is not the driver's.
type connSide struct {
	*zookeeper.Backend
	conn  *zookeeper.Conn
	proxy *netfault.Proxy
	once  sync.Once
}

// Close closes the backend, and then its connection and its proxy.
func (s *connSide) Close() error {
	err := s.Backend.Close()
	s.once.Do(func() {
		s.conn.Close()
		s.proxy.Close()
	})
	return err
}

// zkConnect makes a user's connection to a server.
func zkConnect(t service.T, s *service.Server, timeout time.Duration, dial zk.Dialer) *zookeeper.Conn {
	t.Helper()
	// before it tries the first again, the library pauses for a second
	servers := []string{s.Addr, s.Addr, s.Addr}
	conn, err := zookeeper.Connect(servers, timeout, zookeeper.ConnectOptions{Dialer: dial, Logger: quietly{}})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return conn
}

// zkOnConn opens a client over a user's connection, which goes through the proxy.
func zkOnConn(t service.T, s *service.Server, p *netfault.Proxy, timeout time.Duration, o zookeeper.Options) *connSide {
	t.Helper()
	conn := zkConnect(t, s, timeout, func(network, addr string, timeout time.Duration) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		return p.Dial(ctx, network, addr)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b, err := zookeeper.New(ctx, conn, o)
	if err != nil {
		conn.Close()
		t.Fatalf("%v", err)
	}
	side := &connSide{Backend: b, conn: conn, proxy: p}
	t.Cleanup(func() { side.Close() })
	return side
}

// zkClient is a client that reaches its servers through a proxy of its own.
type zkClient struct {
	*dlock.Client
	p *netfault.Proxy
}

// zkOpen opens a client of the servers of the URL; more is what follows the hosts.
func zkOpen(t service.T, url, more string, ttl time.Duration, opts ...dlock.Option) *zkClient {
	t.Helper()
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := dlock.Open(ctx, zkBehind(t, url, p, more), append([]dlock.Option{dlock.TTL(ttl), dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { c.Close() })
	return &zkClient{c, p}
}

// zkTree reads and changes the nodes by hand.
type zkTree struct {
	t service.T
	*zk.Conn
}

func treeOf(t service.T, s *service.Server) zkTree {
	t.Helper()
	return zkTree{t, zkOf(t, s, 30*time.Second)}
}

// children returns the names of the nodes under the path, none if there is no such node.
func (z zkTree) children(path string) []string {
	z.t.Helper()
	names, _, err := z.Children(path)
	if err != nil && err != zk.ErrNoNode {
		z.t.Fatalf("children of %s: %v", path, err)
	}
	return names
}

// make creates a node, and those above it.
func (z zkTree) make(path string, flags int32) string {
	z.t.Helper()
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			if _, err := z.Create(path[:i], nil, 0, zk.WorldACL(zk.PermAll)); err != nil && err != zk.ErrNodeExists {
				z.t.Fatalf("create %s: %v", path[:i], err)
			}
		}
	}
	made, err := z.Create(path, nil, flags, zk.WorldACL(zk.PermAll))
	if err != nil {
		z.t.Fatalf("create %s: %v", path, err)
	}
	return made
}

// zkQueue is the path of the directory of a name that needs no encoding.
func zkQueue(name string) string { return "/dlock/locks/" + name }

// await waits until as many requests stand under a name.
func (z zkTree) await(name string, n int) {
	z.t.Helper()
	await.That(z.t, fmt.Sprintf("%d requests stand under %s", n, name), func() bool { return len(z.children(zkQueue(name))) == n })
}

// mustUnlock releases a lease.
func mustUnlock(t *testing.T, l *dlock.Lease) {
	t.Helper()
	if err := l.Unlock(await.Bounded(t, time.Minute)); err != nil {
		t.Fatalf("Unlock of %s: %v", l.Name(), err)
	}
}

// lost waits until a lease is lost.
func lost(t *testing.T, l *dlock.Lease) {
	t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(time.Minute):
		t.Fatalf("after a minute the lease on %s is not lost", l.Name())
	}
}
