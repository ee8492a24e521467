package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/dlock-go/dlock/driver"
)

// withTLS makes each connection use the current certificates, and verify the server name of the
// URL: etcd's client library would replace that with the host's.
func withTLS(t *driver.TLS) ([]grpc.DialOption, error) {
	c, err := t.Config("")
	if err != nil {
		return nil, err
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(&fresh{credentials.NewTLS(c), t})}, nil
}

// fresh are credentials that read their files for each handshake.
type fresh struct {
	credentials.TransportCredentials
	t *driver.TLS
}

// ClientHandshake implements [credentials.TransportCredentials]: it reads the files, and makes the
// handshake.
func (f *fresh) ClientHandshake(ctx context.Context, name string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := f.t.Config(name)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return credentials.NewTLS(c).ClientHandshake(ctx, c.ServerName, conn)
}

// Clone implements [credentials.TransportCredentials].
func (f *fresh) Clone() credentials.TransportCredentials {
	return &fresh{f.TransportCredentials.Clone(), f.t}
}

// checkCertificates finds out, after no member could be reached, whether a certificate is the
// reason, a member's or ours. The error of gRPC does not always say so: if a server refuses our
// certificate, it depends on which message arrived first.
func (s *settings) checkCertificates(ctx context.Context) error {
	if s.tls == nil {
		return nil
	}
	for _, addr := range s.config.Endpoints {
		if err := handshake(ctx, s.tls, addr); errors.Is(err, errCertificate) {
			return fmt.Errorf("%s: %w", addr, err)
		}
	}
	return nil
}

var errCertificate = errors.New("the certificate was not accepted")

// handshake dials a host, and returns an error if its certificate or ours is not accepted.
func handshake(ctx context.Context, secure *driver.TLS, addr string) error {
	t, err := secure.Config(addr)
	if err != nil {
		return fmt.Errorf("%w: %w", errCertificate, err)
	}
	t.NextProtos = []string{"h2"}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(time.Second))
	c := tls.Client(conn, t)
	if err := c.HandshakeContext(ctx); err != nil {
		return certificateError(err)
	}
	// With TLS 1.3 the server refuses the client's certificate after the handshake. Otherwise it
	// sends its settings.
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return certificateError(err)
	}
	return nil
}

func certificateError(err error) error {
	var remote *net.OpError // an alert of the server
	var verify *tls.CertificateVerificationError
	if errors.As(err, &remote) && remote.Op == "remote error" || errors.As(err, &verify) {
		return fmt.Errorf("%w: %w", errCertificate, err)
	}
	return err
}
