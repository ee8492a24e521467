package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

func init() {
	driver.Register("redlock", openRedlock)
	driver.Register("redlocks", openRedlock)
}

// reachTimeout is how long a majority of the masters has to be reached when a client is opened.
const reachTimeout = 5 * time.Second

func openRedlock(ctx context.Context, c driver.Config) (driver.Backend, error) {
	s, o, err := parseRedlock(c)
	if err != nil {
		return nil, err
	}
	clients := make([]redis.UniversalClient, len(s.hosts))
	for i, h := range s.hosts {
		ro := s.options(h)
		ro.ContextTimeoutEnabled = true // a majority goes on without a master that is late
		clients[i] = redis.NewClient(ro)
	}
	b, err := NewRedlock(clients, o)
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

// reach waits until a majority of the masters answers, to a script of ours.
func (b *Redlock) reach(ctx context.Context) error {
	const name = "dlock"
	answers, err := b.ask(reachTimeout, func() []*call { return []*call{b.call(redlockLook, name, "-")} }, func(answer) {})
	if err != nil {
		return err
	}
	why := b.silence(reachTimeout)
	err = gather(ctx, b, len(b.nodes), reachTimeout, answers, func(a answer) bool {
		why.said(a.node, b.explain(name, a.calls[0].err))
		return len(b.nodes)-why.silent() >= b.need
	})
	if err == nil && b.hopeless(why.silent()) {
		err = why
	}
	return err
}

// parseRedlock reads redlock://user:password@host:port,host:port,host:port/DB?parameters.
func parseRedlock(c driver.Config) (*settings, RedlockOptions, error) {
	u, o := c.URL, RedlockOptions{Prefix: c.Prefix}
	bad := func(format string, args ...any) (*settings, RedlockOptions, error) {
		return nil, o, fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	s := &settings{user: u.User.Username(), dial: 3 * time.Second} // less than reach has
	s.password, _ = u.User.Password()
	s.hosts = c.Addrs("6379")
	if len(s.hosts) < 3 {
		return bad("%s wants at least 3 masters: %s://user:password@host:6379,host:6379,host:6379/DB", u.Scheme, u.Scheme)
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		db, err := strconv.Atoi(path)
		if err != nil || db < 0 {
			return bad("the path names the database, a number")
		}
		s.db = db
	}
	p := c.Params()
	o.NodeTimeout = p.Duration("node_timeout", 250*time.Millisecond)
	o.RetryDelay = p.Duration("retry_delay", 50*time.Millisecond)
	o.MinUptime = p.Duration("min_uptime", 0)
	s.poolSize = p.Int("pool_size", 0)
	if u.Scheme == "redlocks" {
		s.tls = p.TLS()
	}
	if err := p.Err(); err != nil {
		return nil, o, err
	}
	if o.NodeTimeout <= 0 || o.RetryDelay <= 0 || s.poolSize < 0 {
		return bad("node_timeout and retry_delay are positive, and pool_size is not negative")
	}
	return s, o, nil
}
