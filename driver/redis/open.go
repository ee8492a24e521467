package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	var rdb redis.UniversalClient
	switch strings.Replace(c.URL.Scheme, "rediss", "redis", 1) {
	case "redis":
		rdb = redis.NewClient(s.options(s.hosts[0]))
	case "redis+sentinel":
		o := s.options("")
		rdb = redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: s.master, SentinelAddrs: s.hosts, SentinelUsername: s.sentinelUser, MaxRetries: -1, SentinelPassword: s.sentinelPassword,
			Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig, Dialer: o.Dialer, DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout,
			WriteTimeout: o.WriteTimeout, DialerRetries: o.DialerRetries, PoolSize: o.PoolSize, PipelinePoolSize: o.PipelinePoolSize,
		})
	default:
		o := s.options("")
		rdb = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: s.hosts, ClusterStateReloadInterval: 5 * time.Second, MaintNotificationsConfig: o.MaintNotificationsConfig,
			Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, Dialer: o.Dialer, DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout,
			WriteTimeout: o.WriteTimeout, DialerRetries: o.DialerRetries, PoolSize: o.PoolSize, PipelinePoolSize: o.PipelinePoolSize,
		})
	}
	s.o.Identity = strings.Join(append(slices.Sorted(slices.Values(s.hosts)), s.master, strconv.Itoa(s.db)), ",")
	b, err := newBackend(rdb, s.o, c.URL.Scheme)
	if err == nil {
		b.owned = true
		err = b.reach(ctx)
	}
	if err != nil {
		rdb.Close()
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.hosts, ", "), err)
	}
	return b, nil
}

// reach asks the server something, with the rights that will be needed.
func (b *Backend) reach(ctx context.Context) error {
	c := b.call(inspectScript, "dlock")
	c.fresh = true
	_, err := b.ask(ctx, "dlock", c)
	return err
}

// options are what all kinds of client have in common.
func (s *settings) options(addr string) *redis.Options {
	return &redis.Options{
		Addr: addr, Username: s.user, Password: s.password, DB: s.db, TLSConfig: s.tls, Dialer: dialer(s.dial, s.tls), DialTimeout: s.dial, ReadTimeout: s.read, WriteTimeout: s.write,
		PoolSize: s.poolSize,
		// pipelines are what this driver sends: a second pool for them would only double the
		// connections
		PipelinePoolSize: -1,
		DialerRetries:    1, // the driver tries again by itself, and is to know soon
		// This would look names up before any context counts, for notices that only a managed Redis
		// sends.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
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
	s.hosts = c.Addrs(port)
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
	if strings.HasPrefix(u.Scheme, "rediss") {
		s.tls = p.TLS()
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if s.dial <= 0 || s.read <= 0 || s.write <= 0 || s.poolSize < 0 {
		return nil, bad("timeouts are positive, and pool_size is not negative")
	}
	return s, nil
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
