package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// withServerName makes the TLS handshake ask for the server name that the URL gives: the client of
// etcd puts the host's in its place.
func withServerName(t *tls.Config) []grpc.DialOption {
	if t.ServerName == "" {
		return nil
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(&fixedName{credentials.NewTLS(t), t})}
}

// fixedName are credentials that ask for one server name.
type fixedName struct {
	credentials.TransportCredentials
	t *tls.Config
}

// ClientHandshake ignores the host's name.
func (f *fixedName) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return f.TransportCredentials.ClientHandshake(ctx, f.t.ServerName, conn)
}

// Clone implements [credentials.TransportCredentials].
func (f *fixedName) Clone() credentials.TransportCredentials {
	return &fixedName{f.TransportCredentials.Clone(), f.t}
}

// checkCertificates finds out, after no member could be reached, whether a certificate is the
// reason, theirs or ours. What gRPC says of a server that refuses ours depends on which message was
// there first.
func (s *settings) checkCertificates(ctx context.Context) error {
	if s.config.TLS == nil {
		return nil
	}
	for _, addr := range s.config.Endpoints {
		if err := handshake(ctx, s.config.TLS, addr); errors.Is(err, errCertificate) {
			return fmt.Errorf("%s: %w", addr, err)
		}
	}
	return nil
}

var errCertificate = errors.New("the certificate was not accepted")

// handshake dials a host and returns what is wrong with its certificate or ours, or nil.
func handshake(ctx context.Context, t *tls.Config, addr string) error {
	host, _, _ := net.SplitHostPort(addr)
	t = t.Clone()
	t.ServerName, t.NextProtos = cmp.Or(t.ServerName, host), []string{"h2"}
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
