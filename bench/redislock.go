package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	goredis "github.com/redis/go-redis/v9"
)

// ofRedislock is bsm/redislock with a poll every 10 ms: the library leaves the interval to its
// user.
var ofRedislock = contender{name: "redislock", open: func(_ context.Context, addr string) (client, error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	return redislockClient{c, redislock.New(c)}, nil
}}

type redislockClient struct {
	c *goredis.Client
	r *redislock.Client
}

func (c redislockClient) locker(_ context.Context, name string) (locker, error) {
	return &redislockLocker{r: c.r, name: "redislock:" + name}, nil
}

func (c redislockClient) close() { c.c.Close() }

type redislockLocker struct {
	r    *redislock.Client
	name string
	held *redislock.Lock
}

func (l *redislockLocker) lock(ctx context.Context) (err error) {
	// without a deadline of the caller it waits for at most the TTL
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	l.held, err = l.r.Obtain(ctx, l.name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond)})
	return err
}

func (l *redislockLocker) unlock() error { return l.held.Release(context.Background()) }

func (l *redislockLocker) close() {}
