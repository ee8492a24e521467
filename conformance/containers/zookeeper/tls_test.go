package zookeeper

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// secureZooKeeper starts a server with a port for TLS, and returns the address of that port. If
// auth is "need", clients have to present a certificate.
func secureZooKeeper(t *testing.T, a *service.Authority, cert, key, auth string) (s *service.Server, addr string) {
	t.Helper()
	k := ZooKeeper
	k.Ports = 2
	k.Files = map[string]string{"ca.pem": a.Pem, "server.pem": key + cert}
	for name, text := range ZooKeeper.Files {
		k.Files[name] = text
	}
	k.Command = zookeeperCommand(`secureClientPortAddress=127.0.0.1
secureClientPort=$port
ssl.keyStore.location=$dir/server.pem
ssl.trustStore.location=$dir/ca.pem
ssl.clientAuth=`+auth+"\n", 0, "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
	s = service.StartOwn(t, k)
	addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Ports[1]))
	await.That(t, "the port for TLS listens too", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return s, addr
}

// TestZooKeeperTLS: the server is verified, always; nothing falls back to plain text.
func TestZooKeeperTLS(t *testing.T) {
	ours, theirs := service.NewAuthority(t), service.NewAuthority(t)
	mine, mineKey := ours.Issue("a client")
	ca, wrong, clientCert, clientKey := service.File(t, ours.Pem), service.File(t, theirs.Pem), service.File(t, mine), service.File(t, mineKey)
	cert, key := ours.Issue("127.0.0.1")
	named, namedKey := ours.Issue("zk.example")
	plain, byIP := secureZooKeeper(t, ours, cert, key, "none")
	_, byName := secureZooKeeper(t, ours, named, namedKey, "need")
	open := func(patience time.Duration, scheme, addr string, params url.Values) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := dlock.Open(ctx, (&url.URL{Scheme: scheme, User: url.UserPassword("app", "secret"), Host: addr, RawQuery: params.Encode()}).String(), dlock.Logger(nil))
		if err != nil {
			return err
		}
		defer c.Close()
		l, err := c.Mutex("secure").Lock(ctx)
		if err != nil {
			return err
		}
		return l.Unlock(ctx)
	}
	with := func(pairs ...string) url.Values {
		v := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			v.Set(pairs[i], pairs[i+1])
		}
		return v
	}
	for _, c := range []struct {
		what, scheme, addr string
		params             url.Values
		want               string // in the error; "-": there is none
	}{
		{"verified by address", "zookeepers", byIP, with("tls_ca", ca), "-"},
		{"the short scheme", "zks", byIP, with("tls_ca", ca), "-"},
		{"verified by name, with a certificate of the client", "zookeepers", byName, with("tls_ca", ca, "tls_server_name", "zk.example", "tls_cert", clientCert, "tls_key", clientKey), "-"},
		{"without the certificate of the client", "zookeepers", byName, with("tls_ca", ca, "tls_server_name", "zk.example"), ""},
		{"an unknown authority", "zookeepers", byIP, nil, "certificate"},
		{"another authority", "zookeepers", byIP, with("tls_ca", wrong), "certificate"},
		{"another name", "zookeepers", byName, with("tls_ca", ca, "tls_cert", clientCert, "tls_key", clientKey), "certificate"},
		{"another name again", "zookeepers", byIP, with("tls_ca", ca, "tls_server_name", "other.example"), "certificate"},
		{"in the clear", "zookeeper", byIP, nil, ""},
		{"where there is no TLS", "zookeepers", plain.Addr, with("tls_ca", ca), ""},
		{"TLS of another scheme", "zookeeper", byIP, with("tls_ca", ca), "tls_ca"},
		{"no such file", "zookeepers", byIP, with("tls_ca", ca+"-none"), "tls_ca"},
		{"half a pair", "zookeepers", byIP, with("tls_ca", ca, "tls_cert", clientCert), "tls_key"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			const patience, tries = 5 * time.Second, 5
			if c.want == "-" {
				err := open(time.Minute, c.scheme, c.addr, c.params)
				for try := 1; try < tries && err != nil && strings.Contains(err.Error(), " within "); try++ {
					t.Logf("the server stood still; once more: %v", err)
					err = open(time.Minute, c.scheme, c.addr, c.params)
				}
				if err != nil {
					t.Error(err)
				}
				return
			}
			start := time.Now()
			err := open(patience, c.scheme, c.addr, c.params)
			// the driver gives a handshake 2 s: the machine stood still
			for try := 1; try < tries && c.want != "" && await.IsTimeout(err); try++ {
				t.Logf("once more: %v", err)
				start = time.Now()
				err = open(patience, c.scheme, c.addr, c.params)
			}
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the password is shown: %v", err)
			}
			// a driver that ignores the context takes 10 s
			if took := time.Since(start); took > 9*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestZooKeeperTLSIsSlow: Open keeps trying a server whose handshakes are slow, as the first ones
// of a busy server are.
func TestZooKeeperTLSIsSlow(t *testing.T) {
	t.Parallel()
	a := service.NewAuthority(t)
	cert, key := a.Issue("127.0.0.1")
	_, addr := secureZooKeeper(t, a, cert, key, "none")
	p := netfault.NewProxy()
	defer p.Close()
	through, err := p.Addr(addr)
	if err != nil {
		t.Fatal(err)
	}
	const most = 4 // Open has two seconds left then, and a busy server may need more
	for try := 1; ; try++ {
		start, heal := time.Now(), p.Hold(netfault.ToServer)
		time.AfterFunc(5*time.Second, heal) // a handshake has 2 s, so two have failed
		c, err := dlock.Open(t.Context(), "zks://"+through+"/?tls_ca="+url.QueryEscape(service.File(t, a.Pem)), dlock.Logger(nil))
		heal()
		if err == nil {
			c.Close()
			return
		}
		if took := time.Since(start); try == most || took < 6*time.Second {
			t.Fatalf("Open stopped trying after %s, attempt %d: %v", took, try, err)
		}
	}
}

// TestZooKeeperCertificatesAreReplaced: after a replacement on disk the next connection uses the
// new certificates, in time for the session that the leases are in.
func TestZooKeeperCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	a, p := service.NewAuthority(t), netfault.NewProxy()
	defer p.Close()
	cert, key := a.Issue("127.0.0.1")
	_, addr := secureZooKeeper(t, a, cert, key, "need")
	addr, err := p.Addr(addr)
	if err != nil {
		t.Fatal(err)
	}
	steps.CertificatesAreReplaced(t, a, func(params url.Values) (*dlock.Client, error) {
		return dlock.Open(t.Context(), "zks://"+addr+"/?"+params.Encode(), dlock.Logger(nil))
	}, p.Cut)
}
