package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

func init() {
	for _, scheme := range []string{"etcd", "etcds"} {
		driver.Register(scheme, open)
		driver.RegisterChecker(scheme, check)
	}
}

// settings are the contents of a URL.
type settings struct {
	config clientv3.Config
	tls    *driver.TLS // nil: no TLS
	o      Options
}

func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	b, err := s.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.config.Endpoints, ", "), err)
	}
	return b, nil
}

// dial makes the client, if the cluster can be reached and the driver can lock with it.
func (s *settings) dial(parent context.Context) (*Backend, error) {
	bound := 2 * s.config.DialTimeout
	ctx, cancel := context.WithTimeout(parent, bound)
	defer cancel()
	b, err := s.connect(ctx)
	if err == nil {
		if err = b.checkCluster(ctx); err == nil {
			return b, nil
		}
		b.Close()
	}
	var e *ended
	switch {
	case parent.Err() != nil:
		err = &ended{parent.Err(), err}
	case errors.As(err, &e):
		err = e.why
	case ctx.Err() != nil:
		err = noAnswer(bound)
	}
	return nil, err
}

// connect makes the client. If there is a user, the library's client requests an auth token first,
// and does not report why no server answers. So a client without a user first checks that a server
// answers.
func (s *settings) connect(ctx context.Context) (*Backend, error) {
	b, err := s.client(s.anonymous())
	if err != nil {
		return nil, err
	}
	if err := b.attempt(ctx, s.config.DialTimeout, b.checkVersion); err != nil {
		b.Close()
		if why := s.checkCertificates(ctx); why != nil {
			return nil, why
		}
		return nil, plain(err)
	}
	if s.config.Username == "" {
		return b, nil
	}
	b.Close()
	type made struct {
		b   *Backend
		err error
	}
	done := make(chan made, 1)
	go func() {
		for {
			b, err := s.client(s.config)
			if outcomeOf(err) == kit.Answered || kit.Pause(ctx, nil, 20*time.Millisecond) != nil {
				done <- made{b, err}
				return
			}
		}
	}()
	select {
	case m := <-done:
		return m.b, m.err
	case <-ctx.Done():
		go func() { // the attempt ends after the dial timeout
			if m := <-done; m.err == nil {
				m.b.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// anonymous is the configuration without a user.
func (s *settings) anonymous() clientv3.Config {
	c := s.config
	c.Username, c.Password = "", ""
	return c
}

// client makes a backend with a client of its own. It does not contact the cluster.
func (s *settings) client(c clientv3.Config) (*Backend, error) {
	cs := newConnections(c.DialTimeout, len(c.Endpoints))
	c.DialOptions = append(c.DialOptions[:len(c.DialOptions):len(c.DialOptions)], cs.options()...)
	client, err := clientv3.New(c)
	if err != nil {
		return nil, explain(err)
	}
	b, err := newBackend(client, s.o)
	if err != nil {
		client.Close()
		return nil, err
	}
	b.owned, b.conns = true, cs
	return b, nil
}

// parse reads a URL.
func parse(c driver.Config) (*settings, error) {
	u := c.URL
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	addrs := c.Addrs("2379")
	root := strings.Trim(u.Path, "/")
	s := &settings{o: Options{Root: root, Prefix: c.Prefix}}
	p := c.Params()
	keys, key := p.String("keys", "native"), p.String("key", "")
	s.config = clientv3.Config{
		Endpoints: addrs, DialTimeout: p.Duration("dial_timeout", 3*time.Second),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Username: u.User.Username(), Logger: zap.NewNop(),
	}
	s.config.Password, _ = u.User.Password()
	if u.Scheme == "etcds" {
		s.tls = p.TLS()
	}
	var err error
	if s.o.TokenBase, err = kit.ReadTokenBase(p); err == nil {
		err = p.Err()
	}
	if err != nil {
		return nil, err
	}
	switch {
	case keys != "native" && keys != "plain":
		return nil, bad("keys=%.50q: native (dlock's own keys, the default) and plain (those of concurrency.Mutex and etcdctl lock) are allowed", keys)
	case keys == "native" && key != "":
		return nil, bad("key is allowed with keys=plain only: it is what other software locks")
	case len(addrs) == 0 || slices.Contains(addrs, ":2379"):
		return nil, bad("a host is missing: want %s://h1:2379,h2:2379", u.Scheme)
	case s.config.DialTimeout <= 0:
		return nil, bad("dial_timeout must be positive")
	case (s.config.Username == "") != (s.config.Password == ""):
		return nil, bad("it must have both a user and a password, or neither")
	}
	if keys == "plain" {
		s.o.Plain = cmp.Or(key, "{name}")
		if _, err := newPlainKeys(s.o.Plain, s.o.Prefix, cmp.Or(root, "dlock")); err != nil {
			return nil, err
		}
	}
	if s.tls != nil {
		if s.config.DialOptions, err = withTLS(s.tls); err != nil {
			return nil, err
		}
	}
	return s, nil
}
