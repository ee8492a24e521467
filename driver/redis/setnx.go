package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/setnx"
	"github.com/dlock-go/dlock/driver/redis/internal/survey"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// setNX is a backend of the format setnx: that of package redlock over one master, which may be
// Sentinel's or a Cluster.
type setNX struct {
	*redlock.Backend
	rdb    redis.UniversalClient
	caps   driver.Capabilities
	keys   setnx.Pattern
	closed chan struct{}
	once   sync.Once
}

// readSetNX reads the parameters of the format.
func readSetNX(s *settings, p *driver.Params) error {
	s.setNX.Prefix = s.o.Prefix
	s.setNX.RetryDelay = p.Duration("retry_delay", 50*time.Millisecond)
	if s.setNX.Key = p.String("key", ""); s.setNX.Key == "" {
		return invalidURL("%s", setnx.NoKey)
	}
	if s.setNX.RetryDelay <= 0 {
		return invalidURL("retry_delay must be positive")
	}
	_, err := s.pattern()
	return err
}

// pattern returns the keys of the format.
func (s *settings) pattern() (setnx.Pattern, error) {
	return setnx.Parse(s.setNX.Key, s.setNX.Prefix, s.cluster)
}

// openSetNX returns a backend of the format.
func openSetNX(s *settings, rdb redis.UniversalClient, scheme string) (reacher, error) {
	keys, err := s.pattern()
	if err != nil {
		return nil, err
	}
	o := s.setNX
	o.NodeTimeout = s.conn.Read
	b, err := redlock.New([]redis.UniversalClient{rdb}, o)
	if err != nil {
		return nil, err
	}
	caps := b.Capabilities()
	caps.Backend = scheme
	return &setNX{Backend: b, rdb: rdb, caps: caps, keys: keys, closed: make(chan struct{})}, nil
}

// reach reads a lock that no program has.
func (b *setNX) reach(ctx context.Context) error {
	_, err := b.Inspect(ctx, driver.NewID().String())
	return err
}

// Capabilities implements [driver.Capable].
func (b *setNX) Capabilities() driver.Capabilities { return b.caps }

// Close implements [driver.Backend].
func (b *setNX) Close() (err error) {
	b.once.Do(func() {
		close(b.closed)
		err = errors.Join(b.Backend.Close(), conn.Close(b.rdb))
	})
	return err
}

// List implements [driver.Lister]. Every string under a key of the pattern is a lock that is held.
// If every key fits the pattern, the names of locks cannot be known.
func (b *setNX) List(ctx context.Context) ([]string, error) {
	glob, narrow := b.keys.Glob()
	if !narrow {
		return nil, fmt.Errorf("%w: every string of the database may be a lock of key={name}; with a key such as lock:{name}, locks can be listed (%s)",
			driver.ErrUnsupported, setnx.Page)
	}
	return listNodes(ctx, b.rdb, b.closed, func(ctx context.Context, c redis.Cmdable, take func([]string)) error {
		for cursor, first := uint64(0), true; first || cursor != 0; first = false {
			keys, next, err := c.ScanType(ctx, cursor, glob, scanCount, "string").Result()
			if err != nil {
				return err
			}
			cursor = next
			var names []string
			for _, key := range keys {
				if name, ok := b.keys.Name(key); ok {
					names = append(names, name)
				}
			}
			take(names)
		}
		return nil
	})
}

// checkSetNX tries the commands of the scripts, on keys that no lock uses.
func checkSetNX(ctx context.Context, s *settings, _ redis.UniversalClient, servers []survey.Doer) ([]driver.Finding, error) {
	keys, err := s.pattern()
	if err != nil {
		return nil, err
	}
	id := driver.NewID().String()
	key := keys.Key("dlock-check/" + id)
	commands := survey.Strings(key, setnx.Beside(key, "held"))
	commands = append(commands, []any{"scan", 0, "count", 1})
	rights, err := survey.Rights(ctx, servers, survey.Needs{Page: setnx.Page, Keys: keys.Rights(), Commands: commands})
	if err != nil {
		return nil, err
	}
	channels := keyspace.New(s.setNX.Prefix).Channels()
	breaks, err := survey.Breaks(ctx, servers, setnx.Page, channels, channels+id)
	return []driver.Finding{rights, breaks}, err
}
