package driver_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// signed is a self-signed certificate, with its key.
type signed struct {
	cert, key []byte // in PEM form
	leaf      *x509.Certificate
}

// selfSigned makes a certificate for 127.0.0.1 and db.example.
func selfSigned(t *testing.T, name string, life time.Duration) signed {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"db.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), leaf,
	}
}

// secret is a folder like a secret that Kubernetes mounts: its files are links into a folder that
// is itself a link, which is replaced in one step.
type secret struct {
	t        *testing.T
	dir      string
	versions int
}

func (s *secret) file(name string) string { return filepath.Join(s.dir, name) }

// put replaces all files of the folder.
func (s *secret) put(files map[string][]byte) {
	s.t.Helper()
	s.versions++
	version := fmt.Sprint("..", s.versions)
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	must(os.Mkdir(s.file(version), 0o700))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(s.dir, version, name), text, 0o600))
		if _, err := os.Lstat(s.file(name)); err != nil {
			must(os.Symlink(filepath.Join("..data", name), s.file(name)))
		}
	}
	must(os.Symlink(version, s.file("..new")))
	must(os.Rename(s.file("..new"), s.file("..data")))
}

// all is the secret of a client: its certificate, its key, and the server's authority.
func all(client, server signed) map[string][]byte {
	return map[string][]byte{"tls.crt": client.cert, "tls.key": client.key, "ca.crt": server.cert}
}

// params reads the parameters of a URL with all files.
func (s *secret) params(more url.Values) (*driver.TLS, error) {
	v := url.Values{"tls_ca": {s.file("ca.crt")}, "tls_cert": {s.file("tls.crt")}, "tls_key": {s.file("tls.key")}}
	for name, value := range more {
		v[name] = value
	}
	p := driver.NewParams(v)
	c := p.TLS()
	return c, p.Err()
}

// serve is a server that shows its certificate, and accepts the clients whose certificate it knows.
// It answers each client with the name in the client's certificate.
func serve(t *testing.T, server signed, clients ...signed) (addr string) {
	t.Helper()
	pair, err := tls.X509KeyPair(server.cert, server.key)
	if err != nil {
		t.Fatal(err)
	}
	known := x509.NewCertPool()
	for _, c := range clients {
		known.AddCert(c.leaf)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known,
	})
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer conn.Close()
				if c := conn.(*tls.Conn); c.HandshakeContext(context.Background()) == nil {
					fmt.Fprint(c, c.ConnectionState().PeerCertificates[0].Subject.CommonName)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	return l.Addr().String()
}

// shake makes a handshake with the server, and returns the name that it answers.
func shake(t *testing.T, secure *driver.TLS, addr string) (string, error) {
	t.Helper()
	c, err := secure.Config(addr)
	if err != nil {
		return "", err
	}
	conn, err := tls.Dial("tcp", addr, c)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	name := make([]byte, 100)
	n, err := conn.Read(name)
	return string(name[:n]), err
}

func newSecret(t *testing.T, files map[string][]byte) *secret {
	t.Helper()
	s := &secret{t: t, dir: t.TempDir()}
	s.put(files)
	return s
}

func TestParamsTLS(t *testing.T) {
	one := selfSigned(t, "one", time.Hour)
	s := newSecret(t, all(one, one))
	cert, key := s.file("tls.crt"), s.file("tls.key")
	read := func(values url.Values) (*tls.Config, error) {
		p := driver.NewParams(values)
		secure := p.TLS()
		if err := p.Err(); err != nil {
			return nil, err
		}
		return secure.Config("db:1")
	}
	c, err := read(nil)
	if err != nil || c.InsecureSkipVerify || c.RootCAs != nil || c.Certificates != nil || c.ServerName != "db" || c.MinVersion < tls.VersionTLS12 {
		t.Errorf("without parameters: %v, %v", c, err)
	}
	c, err = read(url.Values{"tls_ca": {cert}, "tls_cert": {cert}, "tls_key": {key}, "tls_server_name": {"name"}})
	if err != nil || c.InsecureSkipVerify || c.RootCAs == nil || len(c.Certificates) != 1 || c.ServerName != "name" {
		t.Errorf("with all of them: %v, %v", c, err)
	}
	for want, values := range map[string]url.Values{
		"tls_ca: open":                               {"tls_ca": {cert + "-not-there"}},
		key + " has no certificate":                  {"tls_ca": {key}},
		"tls_cert and tls_key go together":           {"tls_cert": {cert}},
		"invalid URL: tls_cert and tls_key go":       {"tls_key": {key}},
		"tls_cert: open " + cert + "-not-there":      {"tls_cert": {cert + "-not-there"}, "tls_key": {key}},
		"tls_key: open " + key + "-not-there":        {"tls_cert": {cert}, "tls_key": {key + "-not-there"}},
		"tls_key: " + key + " with " + cert + ": tl": {"tls_cert": {key}, "tls_key": {cert}},
	} {
		if _, err := read(values); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", values, err, want)
		}
	}
}

// TestTLSServerName holds which name of the server a configuration expects, whatever its address.
func TestTLSServerName(t *testing.T) {
	plain, named := driver.NewParams(nil).TLS(), driver.NewParams(url.Values{"tls_server_name": {"n"}}).TLS()
	for addr, want := range map[string]string{"db:1": "db", "db": "db", "[::1]:1": "::1", "::1": "::1", "10.0.0.1:1": "10.0.0.1"} {
		for secure, want := range map[*driver.TLS]string{plain: want, named: "n"} {
			if c, err := secure.Config(addr); err != nil || c.ServerName != want {
				t.Errorf("%s: %v, %v; want the name %s", addr, c, err, want)
			}
		}
	}
}

// TestTLSFilesAreReplaced: the next handshake uses the present files: certificate, key and
// authorities, also where links are swapped.
func TestTLSFilesAreReplaced(t *testing.T) {
	client, server := selfSigned(t, "first", time.Hour), selfSigned(t, "server", time.Hour)
	s := newSecret(t, all(client, server))
	for _, more := range []url.Values{nil, {"tls_server_name": {"db.example"}}} {
		secure, err := s.params(more)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"second", "third"} {
			if got, err := shake(t, secure, serve(t, server, client)); err != nil || got != client.leaf.Subject.CommonName {
				t.Fatalf("the server takes %s for %q, %v", client.leaf.Subject.CommonName, got, err)
			}
			// the server is replaced too, and no longer accepts the old client and authority
			client, server = selfSigned(t, name, time.Hour), selfSigned(t, "server", time.Hour)
			addr := serve(t, server, client)
			if got, err := shake(t, secure, addr); err == nil {
				t.Fatalf("the server takes an unknown client for %q", got)
			}
			s.put(all(client, server))
			if got, err := shake(t, secure, addr); err != nil || got != name {
				t.Fatalf("after the files were replaced the server takes %s for %q, %v", name, got, err)
			}
		}
		wrong, err := s.params(url.Values{"tls_server_name": {"other.example"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shake(t, wrong, serve(t, server, client)); !errors.As(err, new(*tls.CertificateVerificationError)) {
			t.Errorf("a server with another name: %v", err)
		}
	}
}

// TestTLSFilesAreHalfWritten: while a file cannot be used, the last content that could be used
// counts until it expires; then the error names the file. No failure is final.
func TestTLSFilesAreHalfWritten(t *testing.T) {
	for _, life := range []time.Duration{time.Hour, -time.Minute} {
		old, other, server := selfSigned(t, "old", life), selfSigned(t, "new", time.Hour), selfSigned(t, "server", life)
		for _, fault := range []struct {
			file string
			text []byte // nil: there is no such file
		}{
			{"tls.crt", old.cert}, {"tls.crt", other.cert[:len(other.cert)/2]}, {"tls.crt", nil},
			{"tls.key", old.key}, {"tls.key", []byte{}}, {"tls.key", nil},
			{"ca.crt", server.cert[:len(server.cert)/2]}, {"ca.crt", nil},
		} {
			s := newSecret(t, all(old, server))
			secure, err := s.params(nil)
			if err != nil {
				t.Fatal(err)
			}
			files := all(other, server)
			if files[fault.file] = fault.text; fault.text == nil {
				delete(files, fault.file)
			}
			s.put(files)
			if life < 0 {
				if _, err := secure.Config(""); err == nil || !strings.Contains(err.Error(), s.file(fault.file)) {
					t.Errorf("%.20q in %s, after the last ones have expired: %v, which does not name it", fault.text, fault.file, err)
				}
			} else {
				want := "old"
				if fault.file == "ca.crt" {
					want = "new"
				}
				if got, err := shake(t, secure, serve(t, server, old, other)); err != nil || got != want {
					t.Errorf("%.20q in %s: the server takes it for %q, %v; want %s", fault.text, fault.file, got, err, want)
				}
			}
			alive := selfSigned(t, "server", time.Hour)
			s.put(all(other, alive))
			if got, err := shake(t, secure, serve(t, alive, other)); err != nil || got != "new" {
				t.Errorf("%s is complete again: the server takes it for %q, %v", fault.file, got, err)
			}
		}
	}
}

// TestTLSFilesOfSeveralAreHalfWritten: a file of several certificates that breaks off in one of
// them cannot be used either, even though the ones before it could. A complete certificate that
// cannot be parsed is skipped.
func TestTLSFilesOfSeveralAreHalfWritten(t *testing.T) {
	client, first, second := selfSigned(t, "client", time.Hour), selfSigned(t, "first", time.Hour), selfSigned(t, "second", time.Hour)
	both := func(one, other signed) []byte { return append(bytes.Clone(one.cert), other.cert...) }
	for cut := 1; cut < len(second.cert)-len("-----BEGIN"); cut += 50 {
		for _, file := range []string{"ca.crt", "tls.crt"} {
			files := map[string][]byte{"tls.crt": both(client, first), "tls.key": client.key, "ca.crt": both(first, second)}
			s := newSecret(t, files)
			secure, err := s.params(nil)
			if err != nil {
				t.Fatal(err)
			}
			before, err := secure.Config("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			whole := len(files[file]) - 1 // without the end of the last line
			files[file] = files[file][:whole-cut]
			s.put(files)
			after, err := secure.Config("127.0.0.1")
			if err != nil || !after.RootCAs.Equal(before.RootCAs) || len(after.Certificates[0].Certificate) != 2 {
				t.Fatalf("%s without its last %d bytes is used, %v", file, cut, err)
			}
			if _, err := s.params(nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), s.file(file)+" ends in the middle") {
				t.Fatalf("%s without its last %d bytes at Open: %v", file, cut, err)
			}
		}
	}
	broken := []byte("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
	s := newSecret(t, map[string][]byte{"tls.crt": client.cert, "tls.key": client.key, "ca.crt": append(bytes.Clone(first.cert), broken...)})
	secure, err := s.params(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shake(t, secure, serve(t, first, client)); err != nil {
		t.Error(err)
	}
}

// TestTLSFilesAreSwappedMeanwhile: at any moment, a handshake has a certificate with its own key.
func TestTLSFilesAreSwappedMeanwhile(t *testing.T) {
	pairs := []signed{selfSigned(t, "a", time.Hour), selfSigned(t, "b", time.Hour)}
	s := newSecret(t, all(pairs[0], pairs[0]))
	secure, err := s.params(nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				c, err := secure.Config("db:1")
				if err != nil {
					t.Error(err)
					return
				}
				own := c.Certificates[0].PrivateKey.(*ecdsa.PrivateKey)
				if !own.PublicKey.Equal(c.Certificates[0].Leaf.PublicKey) {
					t.Error("the key is another certificate's")
					return
				}
			}
		})
	}
	for i := range 200 {
		next := pairs[i%2]
		s.put(all(next, next))
	}
	close(done)
	readers.Wait()
}
