package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/internal/stall"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// secureEtcd is a member with a certificate. If client is set, it requires client certificates that
// the authority signed.
func secureEtcd(t *testing.T, a *service.Authority, cert, key string, client bool) *service.Server {
	t.Helper()
	k := Etcd
	k.Files = map[string]string{"ca.pem": a.Pem, "cert.pem": cert, "key.pem": key}
	command := k.Command
	k.Command = func(dir string, ports []int) []string {
		args := append(command(dir, ports), "--cert-file="+dir+"/cert.pem", "--key-file="+dir+"/key.pem")
		if client {
			args = append(args, "--client-cert-auth", "--trusted-ca-file="+dir+"/ca.pem")
		}
		for i, arg := range args {
			if strings.HasPrefix(arg, "--listen-client-urls") || strings.HasPrefix(arg, "--advertise-client-urls") {
				args[i] = strings.Replace(arg, "http:", "https:", 1)
			}
		}
		return args
	}
	k.URL = func(addr string) string { return "etcds://" + addr }
	mine, mineKey := a.Issue("a test")
	pair, err := tls.X509KeyPair([]byte(mine), []byte(mineKey))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	shown, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: append(shown.Leaf.DNSNames, "127.0.0.1")[0],
	}}}
	k.Ask = func(ctx context.Context, url string) (string, error) { return askEtcd(ctx, c, url) }
	return service.StartOwn(t, k)
}

// watched queries a server until stop, which reports whether the server or this process stalled
// meanwhile.
func watched(s *service.Server) (stop func() bool) {
	const least = 600 * time.Millisecond
	m, began := stall.NewMonitor(context.Background(), least), time.Now()
	m.Watch(50*time.Millisecond, func(ctx context.Context, answered func()) {
		s.Ask(ctx)
		answered()
	})
	return func() bool {
		defer m.Stop()
		return m.Longest(began) >= least
	}
}

// TestEtcdTLS: the server is always verified; nothing falls back to plain text.
func TestEtcdTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := service.NewAuthority(t), service.NewAuthority(t)
	cert, key := ours.Issue("127.0.0.1")
	named, namedKey := ours.Issue("db.example")
	mine, mineKey := ours.Issue("a client")
	strange, strangeKey := theirs.Issue("a client")
	ca, wrong := service.File(t, ours.Pem), service.File(t, theirs.Pem)
	clientCert, clientKey := service.File(t, mine), service.File(t, mineKey)
	strangeCert, strangeCertKey := service.File(t, strange), service.File(t, strangeKey)
	byIP, byName, strict := secureEtcd(t, ours, cert, key, false), secureEtcd(t, ours, named, namedKey, false), secureEtcd(t, ours, cert, key, true)
	open := func(s *service.Server, scheme string, params []string) error {
		v := url.Values{}
		for i := 0; i < len(params); i += 2 {
			v.Set(params[i], params[i+1])
		}
		c, err := dlock.Open(t.Context(), scheme+"://"+s.Addr+"?"+v.Encode(), dlock.Logger(nil))
		if err != nil {
			return err
		}
		defer c.Close()
		l, err := c.Mutex("secure").Lock(await.Context(t))
		if err != nil {
			return err
		}
		return l.Unlock(t.Context())
	}
	t.Run("a break is notified", func(t *testing.T) {
		t.Parallel()
		client := func() *dlock.Client {
			c, err := dlock.Open(t.Context(), "etcds://"+strict.Addr+"?"+url.Values{
				"tls_ca": {ca}, "tls_cert": {clientCert}, "tls_key": {clientKey}, "dial_timeout": {"30s"},
			}.Encode(), dlock.Logger(nil))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		seesBreak(t, client(), client(), "notified", "notified")
	})
	for _, c := range []struct {
		what   string
		server *service.Server
		scheme string
		params []string
		want   string // in the error; empty: no error
	}{
		{"verified by address", byIP, "etcds", []string{"tls_ca", ca}, ""},
		{"verified by name", byName, "etcds", []string{"tls_ca", ca, "tls_server_name", "db.example"}, ""},
		{"with a certificate of the client", strict, "etcds", []string{"tls_ca", ca, "tls_cert", clientCert, "tls_key", clientKey}, ""},
		{"without one", strict, "etcds", []string{"tls_ca", ca}, "certificate"},
		{"with one of another authority", strict, "etcds", []string{"tls_ca", ca, "tls_cert", strangeCert, "tls_key", strangeCertKey}, "certificate"},
		{"an unknown authority", byIP, "etcds", nil, "certificate"},
		{"another authority", byIP, "etcds", []string{"tls_ca", wrong}, "certificate"},
		{"another name", byName, "etcds", []string{"tls_ca", ca}, "certificate"},
		{"another name again", byIP, "etcds", []string{"tls_ca", ca, "tls_server_name", "other.example"}, "certificate"},
		{"in the clear", byIP, "etcd", nil, "reach"},
		{"parameters of TLS in the clear", byIP, "etcd", []string{"tls_ca", ca}, "tls_ca"},
		{"no such file", byIP, "etcds", []string{"tls_ca", ca + "-none"}, "tls_ca"},
		{"half a pair", byIP, "etcds", []string{"tls_ca", ca, "tls_cert", clientCert}, "tls_key"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			if c.want == "" {
				c.params = append(c.params, "dial_timeout", "30s")
			}
			for try := range 3 {
				stood := watched(c.server)
				err := open(c.server, c.scheme, c.params)
				still := stood()
				if (err == nil) == (c.want == "") && (err == nil || strings.Contains(strings.ToLower(err.Error()), c.want)) {
					return
				}
				if err == nil || !still || try == 2 {
					t.Errorf("%v; want %q", err, c.want)
					return
				}
				t.Logf("the machine stalled, and the test shows nothing: %v", err)
			}
		})
	}
}

// TestEtcdCertificatesAreReplaced: certificates are replaced on disk, and the next connection has
// the new ones.
func TestEtcdCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	a, p := service.NewAuthority(t), netfault.NewProxy()
	defer p.Close()
	for name, server := range map[string]string{"": "127.0.0.1", "db.example": "db.example"} {
		t.Run(server, func(t *testing.T) {
			cert, key := a.Issue(server)
			addr, err := p.Addr(secureEtcd(t, a, cert, key, true).Addr)
			if err != nil {
				t.Fatal(err)
			}
			steps.CertificatesAreReplaced(t, a, func(params url.Values) (*dlock.Client, error) {
				params.Set("tls_server_name", name)
				return dlock.Open(t.Context(), "etcds://"+addr+"?"+params.Encode(), dlock.Logger(nil))
			}, p.Cut)
		})
	}
}
