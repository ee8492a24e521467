package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/dlock-go/dlock/driver"
)

func init() {
	driver.Register("etcd", open)
	driver.Register("etcds", open)
}

// settings are what a URL says.
type settings struct {
	config clientv3.Config
	o      Options
}

func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	reason := s.handshakes(ctx)
	b, err := dial(ctx, s)
	if why := reason(err); err != nil {
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.config.Endpoints, ", "), why)
	}
	return b, nil
}

// dial makes the client, which asks the server for a token if there is a user, and reads with the rights that will be needed.
func dial(ctx context.Context, s *settings) (*Backend, error) {
	type made struct {
		client *clientv3.Client
		err    error
	}
	done := make(chan made, 1)
	go func() {
		client, err := clientv3.New(s.config)
		done <- made{client, err}
	}()
	var m made
	select {
	case m = <-done:
	case <-ctx.Done():
		go func() { // it ends after the dial timeout
			if m := <-done; m.err == nil {
				m.client.Close()
			}
		}()
		return nil, ctx.Err()
	}
	if m.err != nil {
		return nil, explain(m.err)
	}
	b, err := newBackend(m.client, s.o)
	if err == nil {
		b.owned = true
		bound, cancel := context.WithTimeout(ctx, 2*s.config.DialTimeout)
		defer cancel()
		if _, err = b.Inspect(bound, "dlock"); err != nil {
			b.Close()
		}
	}
	return b, err
}

func parse(c driver.Config) (*settings, error) {
	u := c.URL
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	addrs := c.Addrs("2379")
	root := strings.Trim(u.Path, "/")
	s := &settings{o: Options{Root: root, Prefix: c.Prefix, Identity: strings.Join(slices.Sorted(slices.Values(addrs)), ",")}}
	p := c.Params()
	s.config = clientv3.Config{
		Endpoints: addrs, DialTimeout: p.Duration("dial_timeout", 3*time.Second),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Username: u.User.Username(), Logger: zap.NewNop(),
	}
	s.config.Password, _ = u.User.Password()
	if u.Scheme == "etcds" {
		s.config.TLS = p.TLS()
		s.config.DialOptions = append(s.config.DialOptions, named(s.config.TLS)...)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	switch {
	case len(addrs) == 0 || slices.Contains(addrs, ":2379"):
		return nil, bad("want hosts: %s://h1:2379,h2:2379", u.Scheme)
	case s.config.DialTimeout <= 0:
		return nil, bad("dial_timeout is positive")
	case (s.config.Username == "") != (s.config.Password == ""):
		return nil, bad("a user and a password go together")
	}
	return s, nil
}

// named makes the TLS handshake ask for the server name that the URL gives: the client of etcd puts the host's in its place.
func named(t *tls.Config) []grpc.DialOption {
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
