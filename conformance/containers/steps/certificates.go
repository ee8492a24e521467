package steps

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// certificates are the files of a client, which are replaced as cert-manager and Kubernetes do it:
// they are links into a folder, and all change in one step.
type certificates struct {
	t   *testing.T
	dir string
}

func (c *certificates) put(files map[string]string) {
	c.t.Helper()
	version, err := os.MkdirTemp(c.dir, "..")
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(version, name), []byte(text), 0o600))
		if _, gone := os.Lstat(filepath.Join(c.dir, name)); gone != nil {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", name), filepath.Join(c.dir, name)))
		}
	}
	next := filepath.Join(c.dir, "..next")
	err = errors.Join(err, os.Symlink(filepath.Base(version), next), os.Rename(next, filepath.Join(c.dir, "..data")))
	if err != nil {
		c.t.Fatal(err)
	}
}

// CertificatesAreReplaced tests that a client's next connection uses the certificate, the key and
// the authorities that its files have by then. The servers trust the authority, and require the
// client's certificate. open opens a client with parameters of a URL, and cut ends all of its
// connections.
func CertificatesAreReplaced(t *testing.T, known *service.Authority, open func(url.Values) (*dlock.Client, error), cut func()) {
	t.Helper()
	unknown := service.NewAuthority(t)
	files := &certificates{t, t.TempDir()}
	put := func(client, server *service.Authority) {
		cert, key := client.Issue("a client")
		files.put(map[string]string{"tls.crt": cert, "tls.key": key, "ca.crt": server.Pem})
	}
	put(known, known)
	c, err := open(url.Values{"ttl": {"20s"}, "tls_ca": {filepath.Join(files.dir, "ca.crt")},
		"tls_cert": {filepath.Join(files.dir, "tls.crt")}, "tls_key": {filepath.Join(files.dir, "tls.key")}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	held, err := c.Mutex("certificates/held").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	try := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		l, err := c.Mutex("certificates/tried").TryLock(ctx)
		if err == nil {
			err = l.Unlock(t.Context()) // which has a bound of its own
		}
		return err
	}
	for what, with := range map[string][2]*service.Authority{
		"a certificate that the server does not know":     {unknown, known},
		"authorities that do not know the server":         {known, unknown},
		"neither of them, as if the fleet were another's": {unknown, unknown},
	} {
		put(with[0], with[1])
		cut()
		_ = try(time.Second) // perhaps on a connection for which the files were read before
		cut()
		for begun := time.Now(); time.Since(begun) < time.Second; { // a cut one may fail again
			if err := try(time.Second); err == nil {
				t.Errorf("the files now have %s, and a new connection was made", what)
				break
			}
		}
		put(known, known)
		await.That(t, "new connections have the new files, after "+what, func() bool { return try(5*time.Second) == nil })
	}
	until := held.Until()
	await.That(t, "the lease is renewed on new connections", func() bool { return held.Until().After(until) })
	if err := held.Unlock(await.Context(t)); err != nil {
		t.Errorf("the lease did not outlast the change of certificates: %v", err)
	}
}
