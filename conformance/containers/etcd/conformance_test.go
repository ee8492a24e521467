package etcd

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/etcd"
)

// etcdTTL is the least TTL that etcd keeps, which follows from the least election timeout.
const etcdTTL = 2 * time.Second

// etcdSide is a backend, with a proxy before its servers.
type etcdSide struct {
	*etcd.Backend
	client *clientv3.Client // nil: the driver's own
	proxy  *netfault.Proxy
	rpcs   *rpcs // nil: its calls are not recorded
	once   sync.Once
}

// Close closes the backend, its client and its proxy.
func (s *etcdSide) Close() error {
	err := s.Backend.Close()
	s.once.Do(func() {
		if s.client != nil {
			err = errors.Join(err, s.client.Close())
		}
		s.proxy.Close()
	})
	return err
}

// etcdOver opens the driver over a client of the test. change may change the configuration of that
// client.
func etcdOver(t service.T, p *netfault.Proxy, addrs []string, change ...func(*clientv3.Config)) *etcdSide {
	t.Helper()
	return etcdWith(t, p, addrs, etcd.Options{}, change...)
}

// etcdWith is etcdOver with options of the driver.
func etcdWith(t service.T, p *netfault.Proxy, addrs []string, o etcd.Options, change ...func(*clientv3.Config)) *etcdSide {
	t.Helper()
	r := newRPCs()
	// docs/etcd.md asks for short pauses between attempts to dial
	pauses := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}
	c := clientv3.Config{Endpoints: addrs, Logger: zap.NewNop(), DialOptions: append(r.options(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: 20 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return p.Dial(ctx, "tcp", addr) }))}
	for _, f := range change {
		f(&c)
	}
	client, err := clientv3.New(c)
	if err != nil {
		p.Close()
		t.Fatalf("%v", err)
	}
	b, err := etcd.New(client, o)
	if err != nil {
		client.Close()
		p.Close()
		t.Fatalf("%v", err)
	}
	s := &etcdSide{Backend: b, client: client, proxy: p, rpcs: r}
	t.Cleanup(func() { s.Close() })
	return s
}

// etcdByURL opens the driver by a URL, but through the proxy.
func etcdByURL(t service.T, p *netfault.Proxy, text string) *etcdSide {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatalf("not a URL")
	}
	var hosts []string
	for h := range strings.SplitSeq(u.Host, ",") {
		through, err := p.Addr(h)
		if err != nil {
			t.Fatalf("%v", err)
		}
		hosts = append(hosts, through)
	}
	u.Host = strings.Join(hosts, ",")
	if q := u.Query(); !q.Has("dial_timeout") { // a machine that stalls is no reason to fail
		q.Set("dial_timeout", "10s")
		u.RawQuery = q.Encode()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b, err := driver.Lookup(u.Scheme)(ctx, driver.Config{URL: u, Hosts: hosts, TTL: time.Minute, Client: driver.NewID()})
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := &etcdSide{Backend: b.(*etcd.Backend), proxy: p}
	t.Cleanup(func() { s.Close() })
	return s
}

// etcdSideOf opens a client of the one server.
func etcdSideOf(t service.T, s *service.Server, change ...func(*clientv3.Config)) *etcdSide {
	t.Helper()
	return etcdOver(t, netfault.NewProxy(), []string{s.Addr}, change...)
}

// etcdHarness is [service.Harness] without the powers for which a proxy would have to read HTTP/2.
func etcdHarness(name string, open func(conformance.T, *netfault.Proxy) *etcdSide, servers ...*service.Server) conformance.Harness {
	h := service.Harness(name, func(t conformance.T, p *netfault.Proxy) driver.Backend { return open(t, p) }, servers...)
	h.TTL = etcdTTL
	h.Record = nil // a stream means nothing on another connection
	h.Calls = nil  // updates of stream windows look like calls
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		client := etcdOf(t, servers[0])
		b, err := etcd.New(client, etcd.Options{Prefix: prefix})
		if err != nil {
			t.Fatalf("%v", err)
		}
		return b
	}
	return h
}

// stored is the harness of clients of a server whose keys the test may read.
func stored(h conformance.Harness, s *service.Server) conformance.Harness {
	if s.Own() {
		h.Stored = func(t conformance.T, _ driver.Backend, name string) int {
			t.Helper()
			return len(keysOf(t, etcdOf(t, s), name))
		}
	} else {
		h.Without = append(h.Without, "Stored")
	}
	return h
}

// seen is the harness of clients whose calls are recorded: they are counted, and transactions can
// be sent again.
func seen(h conformance.Harness, s *service.Server) conformance.Harness {
	h = stored(h, s)
	h.Calls = func(b driver.Backend) int64 { return total(b.(*etcdSide).rpcs.counts()) }
	h.Record = func(t conformance.T, b driver.Backend) func() {
		sent := b.(*etcdSide).rpcs.record()
		return func() {
			t.Helper()
			replayTxns(t, s, sent())
		}
	}
	return h
}

// replayTxns lets the server execute transactions once more, as it does if the network delivers a
// late copy.
func replayTxns(t service.T, s *service.Server, txns []*pb.TxnRequest) {
	t.Helper()
	kv := pb.NewKVClient(etcdOf(t, s).ActiveConnection())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, txn := range txns {
		kv.Txn(ctx, txn) // it may be refused: its lease may be gone
	}
}

func TestEtcdConformance(t *testing.T) {
	t.Run("one member", func(t *testing.T) {
		s := service.Start(t, Etcd)
		open := func(t conformance.T, p *netfault.Proxy) *etcdSide { return etcdByURL(t, p, s.URL) }
		conformance.Run(t, service.OtherConnections(stored(etcdHarness("etcd", open, s), s)))
	})
	t.Run("three members", func(t *testing.T) {
		c := StartCluster(t)
		h := etcdHarness("etcd, three members", func(t conformance.T, p *netfault.Proxy) *etcdSide { return etcdOver(t, p, c.addrs()) }, c.Members...)
		h = seen(h, c.Members[0])
		h.Restart = func(t conformance.T) { c.Restart(t) }
		conformance.Run(t, service.Beside(h))
	})
}

// TestEtcdClientConformance runs the laws over a client of the caller's, whose calls are recorded,
// so that laws have all powers.
func TestEtcdClientConformance(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	conformance.Run(t, seen(etcdHarness("etcd, a client of the user's", func(t conformance.T, p *netfault.Proxy) *etcdSide { return etcdOver(t, p, []string{s.Addr}) }, s), s))
}

// side opens a client of the cluster.
func (c *Cluster) side(t service.T, change ...func(*clientv3.Config)) *etcdSide {
	t.Helper()
	return etcdOver(t, netfault.NewProxy(), c.addrs(), change...)
}
