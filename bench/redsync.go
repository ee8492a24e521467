package main

import (
	"context"
	"math"

	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
)

// ofRedsync is redsync on one server: it polls, every 50 to 250 ms.
var ofRedsync = contender{name: "redsync", open: func(_ context.Context, addr string) (client, error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	return redsyncClient{c, redsync.New(redsyncpool.NewPool(c))}, nil
}}

type redsyncClient struct {
	c *goredis.Client
	r *redsync.Redsync
}

func (c redsyncClient) locker(_ context.Context, name string) (locker, error) {
	m := c.r.NewMutex("redsync:"+name, redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32))
	return redsyncLocker{m}, nil
}

func (c redsyncClient) close() { c.c.Close() }

type redsyncLocker struct{ m *redsync.Mutex }

func (l redsyncLocker) lock(ctx context.Context) error { return l.m.LockContext(ctx) }

func (l redsyncLocker) unlock() error {
	_, err := l.m.UnlockContext(context.Background())
	return err
}

func (l redsyncLocker) close() {}
