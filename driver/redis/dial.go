package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// dialer returns a function that connects, to a server that speaks TLS if config is not nil. Its
// errors say what failed. It is the library's own but for that: what that one says of a handshake
// is that some time is over.
func dialer(timeout time.Duration, config *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	timeout = timeout * 9 / 10 // less than the library waits for it, which would not know why
	d := &net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil || config == nil {
			return conn, err
		}
		c := config.Clone()
		if c.ServerName == "" {
			c.ServerName, _, _ = net.SplitHostPort(addr)
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		t := tls.Client(conn, c)
		if err := t.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: &handshakeError{err}}
		}
		return t, nil
	}
}

// handshakeError is why TLS does not begin.
type handshakeError struct{ err error }

// Error says so.
func (e *handshakeError) Error() string {
	if e.Timeout() {
		return "the TLS handshake was not answered in time; does the server speak TLS there?"
	}
	return "TLS handshake: " + e.err.Error()
}

// Unwrap returns the error of package tls.
func (e *handshakeError) Unwrap() error { return e.err }

// Timeout is [net.Error]'s.
func (e *handshakeError) Timeout() bool { return errors.Is(e.err, context.DeadlineExceeded) }

// Temporary is [net.Error]'s.
func (e *handshakeError) Temporary() bool { return e.Timeout() }
