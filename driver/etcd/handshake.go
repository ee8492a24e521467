package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// handshakes finds the reason if the cluster cannot be reached. gRPC goes on dialling whatever happens and says in the end that the time is over; so a handshake
// of our own with each host, begun when the first answer takes long, tells what is wrong with a certificate. What it returns is called once, with the error that there was.
func (s *settings) handshakes(ctx context.Context) (reason func(error) error) {
	if s.config.TLS == nil {
		return func(err error) error { return err }
	}
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan error, 1)
	go func() {
		for _, addr := range s.config.Endpoints {
			if pause(ctx, 200*time.Millisecond) != nil {
				break
			}
			if err := shake(ctx, s.config.TLS, addr); errors.Is(err, errCertificate) {
				found <- fmt.Errorf("%s: %w", addr, err)
				return
			}
		}
		found <- nil
	}()
	return func(err error) error {
		defer cancel()
		if err == nil {
			return nil
		}
		wait := time.NewTimer(time.Second)
		defer wait.Stop()
		why := error(nil)
		select {
		case why = <-found:
		case <-ctx.Done():
			select {
			case why = <-found:
			default:
			}
		case <-wait.C:
		}
		if why != nil {
			return fmt.Errorf("%w (%w)", why, err)
		}
		return err
	}
}

var errCertificate = errors.New("the certificate was not accepted")

// shake dials a host and returns what is wrong with its certificate or ours, or nil.
func shake(ctx context.Context, t *tls.Config, addr string) error {
	host, _, _ := net.SplitHostPort(addr)
	t = t.Clone()
	t.ServerName, t.NextProtos = cmp.Or(t.ServerName, host), []string{"h2"}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	c := tls.Client(conn, t)
	if err := c.HandshakeContext(ctx); err != nil {
		return certificate(err)
	}
	// With TLS 1.3 the server refuses the client's certificate after the handshake. Otherwise it sends its settings.
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return certificate(err)
	}
	return nil
}

func certificate(err error) error {
	var remote *net.OpError // an alert of the server
	var verify *tls.CertificateVerificationError
	if errors.As(err, &remote) && remote.Op == "remote error" || errors.As(err, &verify) {
		return fmt.Errorf("%w: %w", errCertificate, err)
	}
	return err
}
