package postgres

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

// secure is a server that shows a certificate. Its user secure may connect over TLS only, with a
// password, and its user known only with a certificate of the authority for that name.
func secure(t *testing.T, a *service.Authority, cert, key string) *service.Server {
	t.Helper()
	k := PostgreSQL
	k.Files = map[string]string{"ca.pem": a.Pem, "cert.pem": cert, "key.pem": key,
		"pg_hba.conf": "host all postgres 127.0.0.1/32 trust\nhostssl all secure 127.0.0.1/32 scram-sha-256\nhostssl all known 127.0.0.1/32 trust clientcert=verify-ca\n"}
	prepare, command := k.Prepare, k.Command
	k.Prepare = func(dir string) []string {
		// the server accepts no key that others may read
		return append([]string{"sh", "-c", `chmod 600 key.pem; if [ "$(id -u)" = 0 ]; then chown postgres key.pem; fi; exec "$@"`, "sh"}, prepare(dir)...)
	}
	k.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "-c", "hba_file="+dir+"/pg_hba.conf", "-c", "ssl=on", "-c", "ssl_ca_file="+dir+"/ca.pem",
			"-c", "ssl_cert_file="+dir+"/cert.pem", "-c", "ssl_key_file="+dir+"/key.pem")
	}
	s := migrated(t, service.StartOwn(t, k))
	execute(t, poolOf(t, s.URL), "CREATE ROLE secure LOGIN PASSWORD 'password'", "CREATE ROLE known LOGIN PASSWORD 'password'")
	for _, g := range neededGrants {
		execute(t, poolOf(t, s.URL), g+" TO secure, known")
	}
	return s
}

// TestPostgresTLS: with verify-full the server is always verified; nothing falls back to plain
// text.
func TestPostgresTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := service.NewAuthority(t), service.NewAuthority(t)
	cert, key := ours.Issue("127.0.0.1")
	named, namedKey := ours.Issue("localhost")
	mine, mineKey := ours.Issue("known")
	ca, wrong := service.File(t, ours.Pem), service.File(t, theirs.Pem)
	clientCert, clientKey := service.File(t, mine), service.File(t, mineKey)
	byIP, byName := secure(t, ours, cert, key), secure(t, ours, named, namedKey)
	for _, c := range []struct {
		what   string
		server *service.Server
		user   string
		params map[string]string
		want   string // in the error; empty: there is none
	}{
		{"verified by address", byIP, "secure", map[string]string{"sslmode": "verify-full", "sslrootcert": ca}, ""},
		{"verified by name", byName, "secure", map[string]string{"sslmode": "verify-full", "sslrootcert": ca, "host": "localhost"}, ""},
		{"verified by authority only", byName, "secure", map[string]string{"sslmode": "verify-ca", "sslrootcert": ca}, ""},
		{"encrypted only", byName, "secure", map[string]string{"sslmode": "require"}, ""},
		{"with a certificate of the client", byIP, "known", map[string]string{"sslmode": "verify-full", "sslrootcert": ca, "sslcert": clientCert, "sslkey": clientKey}, ""},
		{"without one", byIP, "known", map[string]string{"sslmode": "verify-full", "sslrootcert": ca}, "certificate"},
		{"no authority", byIP, "secure", map[string]string{"sslmode": "verify-full"}, "certificate"},
		{"another authority", byIP, "secure", map[string]string{"sslmode": "verify-full", "sslrootcert": wrong}, "certificate"},
		{"another name", byName, "secure", map[string]string{"sslmode": "verify-full", "sslrootcert": ca}, "certificate"},
		{"another name again", byIP, "secure", map[string]string{"sslmode": "verify-full", "sslrootcert": ca, "host": "localhost"}, "certificate"},
		{"in the clear", byIP, "secure", map[string]string{"sslmode": "disable"}, "pg_hba.conf"},
		{"no such file", byIP, "secure", map[string]string{"sslmode": "verify-full", "sslrootcert": ca + "-none"}, "no such file"},
		{"half a pair", byIP, "secure", map[string]string{"sslmode": "verify-full", "sslrootcert": ca, "sslcert": clientCert}, "sslkey"},
	} {
		text := with(t, as(t, c.server.URL, c.user, "password"), func(u *url.URL) {
			q := url.Values{}
			for name, value := range c.params {
				if name == "host" {
					u.Host = value + ":" + u.Port()
				} else {
					q.Set(name, value)
				}
			}
			u.RawQuery = q.Encode()
		})
		err := steps.FirstLock(t, text)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(strings.ToLower(err.Error()), c.want) {
			t.Errorf("%s: %v; want %q", c.what, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "password@") {
			t.Errorf("%s: the password is shown: %v", c.what, err)
		}
	}
}

// TestPostgresCertificatesAreReplaced: they are replaced on disk, and the next connection has the
// new ones.
func TestPostgresCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	a, p := service.NewAuthority(t), netfault.NewProxy()
	defer p.Close()
	cert, key := a.Issue("127.0.0.1")
	addr, err := p.Addr(secure(t, a, cert, key).Addr)
	if err != nil {
		t.Fatal(err)
	}
	libpq := map[string]string{"tls_ca": "sslrootcert", "tls_cert": "sslcert", "tls_key": "sslkey"}
	steps.CertificatesAreReplaced(t, a, func(files url.Values) (*dlock.Client, error) {
		q := url.Values{"sslmode": {"verify-full"}}
		for name := range maps.Keys(files) {
			if libpq[name] == "" {
				q.Set(name, files.Get(name))
			} else {
				q.Set(libpq[name], files.Get(name))
			}
		}
		return dlock.Open(await.Context(t), "postgres://known@"+addr+"/postgres?"+q.Encode(), dlock.Logger(nil))
	}, p.Cut)
}
