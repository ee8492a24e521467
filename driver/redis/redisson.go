package redis

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/rlock"
	"github.com/dlock-go/dlock/driver/redis/internal/survey"
	"github.com/dlock-go/dlock/driver/redis/redisson"
)

// redissons is a backend of the format redisson, that of package redisson.
type redissons struct {
	*redisson.Backend
	rdb  redis.UniversalClient
	caps driver.Capabilities
	once sync.Once
}

// readRedisson reads the parameters of the format.
func readRedisson(s *settings, p *driver.Params) error {
	s.redisson = redisson.Options{
		Prefix: s.o.Prefix,
		Key:    p.String("key", ""), Field: p.String("field", ""), Fenced: p.Bool("fenced", false),
	}
	_, err := s.rlock()
	return err
}

// rlock returns the keys of the format.
func (s *settings) rlock() (*rlock.Layout, error) {
	o := s.redisson
	return rlock.Parse(o.Prefix, o.Key, o.Field, o.Fenced, s.cluster)
}

// openRedisson returns a backend of the format.
func openRedisson(s *settings, rdb redis.UniversalClient, scheme string) (reacher, error) {
	b, err := redisson.New(rdb, s.redisson)
	if err != nil {
		return nil, err
	}
	caps := b.Capabilities()
	caps.Backend = scheme
	return &redissons{Backend: b, rdb: rdb, caps: caps}, nil
}

// reach reads a lock that no program has.
func (b *redissons) reach(ctx context.Context) error {
	_, err := b.Inspect(ctx, driver.NewID().String())
	return err
}

// Capabilities implements [driver.Capable].
func (b *redissons) Capabilities() driver.Capabilities { return b.caps }

// Close implements [driver.Backend].
func (b *redissons) Close() (err error) {
	b.once.Do(func() { err = errors.Join(b.Backend.Close(), conn.Close(b.rdb)) })
	return err
}

// checkRedisson tries the commands of the scripts and of the subscriptions, on keys that no lock
// uses.
func checkRedisson(ctx context.Context, s *settings, _ redis.UniversalClient, servers []survey.Doer) ([]driver.Finding, error) {
	l, err := s.rlock()
	if err != nil {
		return nil, err
	}
	f, err := survey.Rights(ctx, servers, l.Needs())
	return []driver.Finding{f}, err
}
