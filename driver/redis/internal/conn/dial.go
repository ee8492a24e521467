package conn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// dialer returns a function that connects to a server, with TLS if secure is not nil. It does the
// same as the client library, with three differences: each handshake uses the current certificates,
// errors say what failed, where the library only reports a timeout, and no password is read from
// the connection.
func dialer(timeout time.Duration, secure *driver.TLS) func(context.Context, string, string) (net.Conn, error) {
	timeout = timeout * 9 / 10 // sooner than the library's, which has no reason
	d := &net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		switch {
		case err != nil:
			return nil, err
		case secure == nil:
			return guard(conn), nil
		}
		c, err := secure.Config(addr)
		if err != nil {
			conn.Close()
			return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: &HandshakeError{err}}
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		t := tls.Client(conn, c)
		if err := t.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: &HandshakeError{err}}
		}
		return guard(t), nil
	}
}

// HandshakeError is a handshake of TLS that failed. It is a [net.Error].
type HandshakeError struct{ err error }

// Error says what failed.
func (e *HandshakeError) Error() string {
	if e.Timeout() {
		return "the TLS handshake was not answered in time; does the server speak TLS there?"
	}
	return "TLS handshake: " + e.err.Error()
}

// Unwrap returns the error of package tls.
func (e *HandshakeError) Unwrap() error { return e.err }

// Timeout reports whether the server did not answer in time.
func (e *HandshakeError) Timeout() bool { return errors.Is(e.err, context.DeadlineExceeded) }

// Temporary is the same as Timeout.
func (e *HandshakeError) Temporary() bool { return e.Timeout() }
