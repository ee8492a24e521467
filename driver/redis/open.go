package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

func init() {
	for _, scheme := range []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"} {
		driver.Register(scheme, open)
	}
}

// settings are what a URL says about connections.
type settings struct {
	hosts             []string
	user, password    string
	db                int
	master            string // of Sentinel
	sentinelUser      string
	sentinelPassword  string
	dial, read, write time.Duration
	poolSize          int
	tls               *tls.Config
	o                 Options
}

func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	base := strings.Replace(c.URL.Scheme, "rediss", "redis", 1)
	var rdb redis.UniversalClient
	switch base {
	case "redis":
		rdb = redis.NewClient(s.options(s.hosts[0]))
	case "redis+sentinel":
		rdb = redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: s.master, SentinelAddrs: s.hosts, SentinelUsername: s.sentinelUser, SentinelPassword: s.sentinelPassword,
			Username: s.user, Password: s.password, DB: s.db, DialTimeout: s.dial, ReadTimeout: s.read, WriteTimeout: s.write, PoolSize: s.poolSize, TLSConfig: s.tls,
		})
	default:
		rdb = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: s.hosts, ClusterStateReloadInterval: 5 * time.Second, Username: s.user, Password: s.password, DialTimeout: s.dial, ReadTimeout: s.read, WriteTimeout: s.write, PoolSize: s.poolSize, TLSConfig: s.tls,
		})
	}
	s.o.Identity = strings.Join(append(slices.Sorted(slices.Values(s.hosts)), s.master, strconv.Itoa(s.db)), ",")
	b, err := newBackend(rdb, s.o, c.URL.Scheme)
	if err == nil {
		b.owned = true
		_, err = b.Inspect(ctx, "dlock") // reaches the server, with the rights that will be needed
	}
	if err != nil {
		rdb.Close()
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.hosts, ", "), err)
	}
	return b, nil
}

func (s *settings) options(addr string) *redis.Options {
	return &redis.Options{
		Addr: addr, Username: s.user, Password: s.password, DB: s.db, DialTimeout: s.dial, ReadTimeout: s.read, WriteTimeout: s.write,
		PoolSize: s.poolSize, TLSConfig: s.tls,
	}
}

func parse(c driver.Config) (*settings, error) {
	u := c.URL
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	s := &settings{user: u.User.Username(), o: Options{Prefix: c.Prefix}}
	s.password, _ = u.User.Password()
	sentinel, cluster := strings.HasSuffix(u.Scheme, "+sentinel"), strings.HasSuffix(u.Scheme, "+cluster")
	port := "6379"
	if sentinel {
		port = "26379"
	}
	for _, h := range c.Hosts {
		if !strings.Contains(h[strings.LastIndexByte(h, ']')+1:], ":") {
			h = net.JoinHostPort(strings.Trim(h, "[]"), port)
		}
		s.hosts = append(s.hosts, h)
	}
	switch {
	case len(s.hosts) == 0:
		return nil, bad("it has no host; want %s://user:password@host:%s/…", u.Scheme, port)
	case len(s.hosts) > 1 && !sentinel && !cluster:
		return nil, bad("%s takes one host; redis+sentinel and redis+cluster take several", u.Scheme)
	}
	path := strings.Split(strings.Trim(u.Path, "/"), "/")
	if sentinel {
		s.master, path = path[0], path[1:]
		if s.master == "" {
			return nil, bad("want %s://host:26379,host:26379/NAME-OF-THE-MASTER/DB", u.Scheme)
		}
	}
	if len(path) == 1 && path[0] != "" {
		db, err := strconv.Atoi(path[0])
		if err != nil || db < 0 || cluster {
			return nil, bad("the path names the database, a number; a cluster has none")
		}
		s.db = db
	} else if len(path) > 1 {
		return nil, bad("the path has too many parts")
	}
	p := c.Params()
	s.dial = p.Duration("dial_timeout", 5*time.Second)
	s.read = p.Duration("read_timeout", 3*time.Second)
	s.write = p.Duration("write_timeout", 3*time.Second)
	s.poolSize = p.Int("pool_size", 0)
	s.o.GrantWindow = p.Duration("grant_window", time.Second)
	s.o.KeepTokens = p.Duration("keep_tokens", 10*time.Minute)
	s.o.WaitReplicas = p.Int("wait_replicas", 0)
	if sentinel {
		s.sentinelUser = p.String("sentinel_username", "")
		s.sentinelPassword = p.String("sentinel_password", "")
	}
	var ca, cert, key, name string
	secure := strings.HasPrefix(u.Scheme, "rediss")
	if secure {
		ca, cert, key, name = p.String("tls_ca", ""), p.String("tls_cert", ""), p.String("tls_key", ""), p.String("tls_server_name", "")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if s.dial <= 0 || s.read <= 0 || s.write <= 0 || s.poolSize < 0 {
		return nil, bad("timeouts are positive, and pool_size is not negative")
	}
	if secure {
		t, err := tlsConfig(ca, cert, key, name)
		if err != nil {
			return nil, bad("%w", err)
		}
		s.tls = t
	}
	return s, nil
}

// tlsConfig always verifies the server.
func tlsConfig(ca, cert, key, name string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("tls_ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls_ca: %s has no certificate in PEM form", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("tls_cert and tls_key go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("tls_cert: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// identity names the queues that a client of the caller's stands over, as far as its options tell.
func identity(rdb redis.UniversalClient) string {
	switch c := rdb.(type) {
	case *redis.Client:
		if o := c.Options(); o.Addr != "FailoverClient" { // what one for Sentinel has there
			return fmt.Sprintf("%s,,%d", o.Addr, o.DB)
		}
	case *redis.ClusterClient:
		return strings.Join(slices.Sorted(slices.Values(c.Options().Addrs)), ",") + ",,0"
	}
	return fmt.Sprintf("%p", rdb)
}
