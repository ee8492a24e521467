package redis

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/redisson"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

func init() {
	for _, scheme := range []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"} {
		driver.Register(scheme, open)
		driver.RegisterChecker(scheme, check)
	}
}

// settings are those that a URL has.
type settings struct {
	hosts            []string
	conn             conn.Settings
	master           string // of Sentinel
	sentinelUser     string
	sentinelPassword string
	cluster          bool
	format           *format
	o                Options          // of dlock's own format
	setNX            redlock.Options  // of the format setnx
	redisson         redisson.Options // of the format redisson
}

func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	rdb := s.client(c.URL.Scheme)
	b, err := s.format.open(s, rdb, c.URL.Scheme)
	if err != nil {
		conn.Close(rdb)
		return nil, err
	}
	if err := b.reach(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.hosts, ", "), err)
	}
	return b, nil
}

// client makes the client library's client. It does not contact the server yet.
func (s *settings) client(scheme string) redis.UniversalClient {
	switch strings.Replace(scheme, "rediss", "redis", 1) {
	case "redis":
		return redis.NewClient(s.conn.Options(s.hosts[0]))
	case "redis+sentinel":
		o := s.conn.Options("")
		f := &redis.FailoverOptions{
			MasterName: s.master, SentinelAddrs: s.hosts,
			SentinelUsername: s.sentinelUser, SentinelPassword: s.sentinelPassword,
			Username: o.Username, Password: o.Password, DB: o.DB, Dialer: o.Dialer,
			DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
			PoolSize: o.PoolSize, MaxRetries: -1,
		}
		conn.Newer(f)
		return redis.NewFailoverClient(f)
	default:
		o := s.conn.Options("")
		f := &redis.ClusterOptions{
			Addrs:    s.hosts,
			Username: o.Username, Password: o.Password, Dialer: o.Dialer,
			DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
			PoolSize: o.PoolSize,
		}
		conn.Newer(f)
		return redis.NewClusterClient(f)
	}
}

// readNative reads the parameters that only dlock's own format has.
func readNative(s *settings, p *driver.Params) error {
	s.o.GrantWindow = p.Duration("grant_window", defaultGrantWindow)
	s.o.KeepTokens = p.Duration("keep_tokens", defaultKeepTokens)
	s.o.WaitReplicas = p.Int("wait_replicas", 0)
	return nil
}

// openNative returns a backend of dlock's own format.
func openNative(s *settings, rdb redis.UniversalClient, scheme string) (reacher, error) {
	b, err := newBackend(rdb, s.o, scheme)
	if err != nil {
		return nil, err
	}
	b.owned = true
	return b, nil
}

// reach reads a name, which needs the same rights as the driver does.
func (b *Backend) reach(ctx context.Context) error {
	c := b.call(usedScript, "dlock")
	c.newConnection = true
	_, err := b.ask(ctx, "dlock", c)
	return err
}

// invalidURL returns the error for a URL.
func invalidURL(format string, args ...any) error {
	return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
}

// parse reads a URL. The package comment has its forms.
func parse(c driver.Config) (*settings, error) {
	u := c.URL
	s := &settings{conn: conn.Settings{User: u.User.Username()}, o: Options{Prefix: c.Prefix}}
	s.conn.Password, _ = u.User.Password()
	sentinel, cluster := strings.HasSuffix(u.Scheme, "+sentinel"), strings.HasSuffix(u.Scheme, "+cluster")
	s.cluster = cluster
	port := "6379"
	if sentinel {
		port = "26379"
	}
	s.hosts = c.Addrs(port)
	switch {
	case len(s.hosts) == 0:
		return nil, invalidURL("it has no host; want %s://user:password@host:%s/…", u.Scheme, port)
	case len(s.hosts) > 1 && !sentinel && !cluster:
		return nil, invalidURL("%s takes one host; redis+sentinel and redis+cluster take several", u.Scheme)
	}
	path := strings.Split(strings.Trim(u.Path, "/"), "/")
	if sentinel {
		s.master, path = path[0], path[1:]
		if s.master == "" {
			return nil, invalidURL("want %s://host:26379,host:26379/NAME-OF-THE-MASTER/DB", u.Scheme)
		}
	}
	if len(path) == 1 && path[0] != "" {
		db, err := strconv.Atoi(path[0])
		if err != nil || db < 0 || cluster {
			return nil, invalidURL("the path must be the number of the database; a Cluster has no databases")
		}
		s.conn.DB = db
	} else if len(path) > 1 {
		return nil, invalidURL("the path has too many parts")
	}
	p := c.Params()
	s.conn.Dial = p.Duration("dial_timeout", 5*time.Second)
	s.conn.Read = p.Duration("read_timeout", 3*time.Second)
	s.conn.Write = p.Duration("write_timeout", 3*time.Second)
	s.conn.PoolSize = p.Int("pool_size", 0)
	if sentinel {
		s.sentinelUser = p.String("sentinel_username", "")
		s.sentinelPassword = p.String("sentinel_password", "")
	}
	if strings.HasPrefix(u.Scheme, "rediss") {
		s.conn.TLS = p.TLS()
	}
	var err error
	if s.format, err = formatOf(c, p); err != nil {
		return nil, err
	}
	ofFormat := s.format.read(s, p)
	if err := cmp.Or(p.Err(), ofFormat); err != nil {
		return nil, err
	}
	if s.conn.Dial <= 0 || s.conn.Read <= 0 || s.conn.Write <= 0 || s.conn.PoolSize < 0 {
		return nil, invalidURL("dial_timeout, read_timeout and write_timeout must be positive, and pool_size must not be negative")
	}
	return s, nil
}
