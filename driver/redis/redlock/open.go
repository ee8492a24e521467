package redlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
	"github.com/dlock-go/dlock/driver/redis/internal/setnx"
)

func init() {
	for _, scheme := range []string{"redlock", "redlocks"} {
		driver.Register(scheme, open)
		driver.RegisterChecker(scheme, check)
	}
}

const (
	// dialTimeout is less than reachTimeout, so that an error names the master that was not
	// reached.
	dialTimeout = 3 * time.Second

	// reachTimeout is how long a majority of the masters has to answer when a client is opened.
	reachTimeout = 5 * time.Second
)

func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	hosts, s, o, err := parse(c)
	if err != nil {
		return nil, err
	}
	clients := make([]redis.UniversalClient, len(hosts))
	for i, h := range hosts {
		ro := s.Options(h)
		ro.ContextTimeoutEnabled = true // a late master must not delay the majority
		clients[i] = redis.NewClient(ro)
	}
	b, err := New(clients, o)
	if err != nil {
		for _, rdb := range clients {
			rdb.Close()
		}
		return nil, err
	}
	b.owned = true
	if err := b.reach(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("reach the masters: %w", err)
	}
	return b, nil
}

// reach waits until a majority of the masters has answered a script.
func (b *Backend) reach(ctx context.Context) error {
	name := driver.NewID().String() // no lock
	answers, err := b.broadcast(reachTimeout, func() []*script.Call { return []*script.Call{withoutTombstone(b.call(b.layout.inspect, name, "-"))} }, func(answer) {})
	if err != nil {
		return err
	}
	why := b.unanswered(reachTimeout)
	err = collect(ctx, b, len(b.masters), reachTimeout, answers, func(a answer) bool {
		why.record(a.master, b.explain(name, a.calls[0].Err))
		return len(b.masters)-why.missing() >= b.majority
	})
	if err == nil && b.impossible(why.missing()) {
		err = why
	}
	return err
}

// parse reads redlock://user:password@host:port,host:port,host:port/DB?parameters.
func parse(c driver.Config) (hosts []string, s conn.Settings, o Options, err error) {
	u := c.URL
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	s = conn.Settings{User: u.User.Username(), Dial: dialTimeout}
	s.Password, _ = u.User.Password()
	hosts = c.Addrs("6379")
	if len(hosts) < 3 {
		return hosts, s, o, bad("%s needs at least 3 masters: %s://user:password@host:6379,host:6379,host:6379/DB", u.Scheme, u.Scheme)
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		db, err := strconv.Atoi(path)
		if err != nil || db < 0 {
			return hosts, s, o, bad("the path must be the number of the database")
		}
		s.DB = db
	}
	p := c.Params()
	o = Options{
		Prefix:      c.Prefix,
		NodeTimeout: p.Duration("node_timeout", defaultNodeTimeout),
		RetryDelay:  p.Duration("retry_delay", defaultRetryDelay),
		MinUptime:   p.Duration("min_uptime", 0),
	}
	s.PoolSize = p.Int("pool_size", 0)
	switch format, q := p.String("format", ""), u.Query(); {
	case format == setnx.Format:
		if o.Key = p.String("key", ""); o.Key == "" {
			return hosts, s, o, bad("%s", setnx.NoKey)
		}
	case format != "":
		return hosts, s, o, bad("unknown format; want format=%s, or none for dlock's own", setnx.Format)
	case !q.Has("format") && q.Has("key"):
		return hosts, s, o, bad("the parameter key belongs to format=%s, which is missing", setnx.Format)
	}
	if u.Scheme == "redlocks" {
		s.TLS = p.TLS()
	}
	if err := p.Err(); err != nil {
		return hosts, s, o, err
	}
	if o.NodeTimeout <= 0 || o.RetryDelay <= 0 || s.PoolSize < 0 {
		return hosts, s, o, bad("node_timeout and retry_delay must be positive, and pool_size must not be negative")
	}
	return hosts, s, o, nil
}
