package mysql

import (
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// secureMySQL is a server that shows a certificate. Its user secure may connect over TLS only, and
// its user known only with a certificate of the authority.
func secureMySQL(t *testing.T, k service.Kind, a *service.Authority, cert, key string) *service.Server {
	t.Helper()
	command, files := k.Command, map[string]string{"ca.pem": a.Pem, "cert.pem": cert, "key.pem": key}
	maps.Copy(files, k.Files)
	k.Files = files
	k.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "--ssl-ca="+dir+"/ca.pem", "--ssl-cert="+dir+"/cert.pem", "--ssl-key="+dir+"/key.pem")
	}
	s := migrated(t, service.StartOwn(t, k))
	execute(t, mysqlOf(t, s).pool(t), "CREATE USER secure IDENTIFIED BY 'password' REQUIRE SSL", "GRANT ALL ON test.* TO secure",
		"CREATE USER known IDENTIFIED BY 'password' REQUIRE X509", "GRANT ALL ON test.* TO known")
	return s
}

// TestMySQLTLS: the server is always verified; nothing falls back to plain text.
func TestMySQLTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := service.NewAuthority(t), service.NewAuthority(t)
	cert, key := ours.Issue("127.0.0.1")
	named, namedKey := ours.Issue("db.example")
	mine, mineKey := ours.Issue("a client")
	ca, wrong := service.File(t, ours.Pem), service.File(t, theirs.Pem)
	clientCert, clientKey := service.File(t, mine), service.File(t, mineKey)
	for _, k := range mysqlKinds {
		start := func(t *testing.T, cert, key string) *service.Server { return secureMySQL(t, k, ours, cert, key) }
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			byIP, byName := start(t, cert, key), start(t, named, namedKey)
			open := func(s *service.Server, user string, secure bool, params url.Values) error {
				u, err := url.Parse(s.URL)
				if err != nil {
					t.Fatal(err)
				}
				u.User, u.RawQuery = url.UserPassword(user, "password"), params.Encode()
				if secure {
					u.Scheme = "mysqls"
				}
				c, err := dlock.Open(t.Context(), u.String(), dlock.Logger(nil))
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
			with := func(pairs ...string) url.Values {
				v := url.Values{}
				for i := 0; i < len(pairs); i += 2 {
					v.Set(pairs[i], pairs[i+1])
				}
				return v
			}
			for _, c := range []struct {
				what   string
				server *service.Server
				user   string
				secure bool
				params url.Values
				want   string // in the error; empty: there is none
			}{
				{"verified by address", byIP, "secure", true, with("tls_ca", ca), ""},
				{"verified by name", byName, "secure", true, with("tls_ca", ca, "tls_server_name", "db.example"), ""},
				{"with a certificate of the client", byIP, "known", true, with("tls_ca", ca, "tls_cert", clientCert, "tls_key", clientKey), ""},
				{"without one", byIP, "known", true, with("tls_ca", ca), "denied"},
				{"no authority", byIP, "secure", true, nil, "certificate"},
				{"another authority", byIP, "secure", true, with("tls_ca", wrong), "certificate"},
				{"another name", byName, "secure", true, with("tls_ca", ca), "certificate"},
				{"another name again", byIP, "secure", true, with("tls_ca", ca, "tls_server_name", "other.example"), "certificate"},
				{"in the clear", byIP, "secure", false, nil, "denied"},
				{"no such file", byIP, "secure", true, with("tls_ca", ca+"-none"), "tls_ca"},
				{"half a pair", byIP, "secure", true, with("tls_ca", ca, "tls_cert", clientCert), "tls_key"},
			} {
				err := open(c.server, c.user, c.secure, c.params)
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(strings.ToLower(err.Error()), c.want) {
					t.Errorf("%s: %v; want %q", c.what, err, c.want)
				}
				if err != nil && strings.Contains(err.Error(), "password@") {
					t.Errorf("%s: the password is shown: %v", c.what, err)
				}
			}
		})
	}
}

// TestMySQLCertificatesAreReplaced: they are replaced on disk, and the next connection has the new
// ones.
func TestMySQLCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	for _, k := range mysqlKinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			a, p := service.NewAuthority(t), netfault.NewProxy()
			defer p.Close()
			cert, key := a.Issue("127.0.0.1")
			addr, err := p.Addr(secureMySQL(t, k, a, cert, key).Addr)
			if err != nil {
				t.Fatal(err)
			}
			steps.CertificatesAreReplaced(t, a, func(params url.Values) (*dlock.Client, error) {
				return dlock.Open(t.Context(), "mysqls://known:password@"+addr+"/test?"+params.Encode(), dlock.Logger(nil))
			}, p.Cut)
		})
	}
}
