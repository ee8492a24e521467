package main

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"
)

// These two scripts are the minimum that a lock with an owner needs: a compare-and-set and a
// compare-and-delete.
var (
	bareSet    = goredis.NewScript(`if redis.call('GET', KEYS[1]) then return 0 end redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1`)
	bareDelete = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

// ofEvalsha measures the two bare scripts.
var ofEvalsha = contender{name: "EVALSHA", bound: true, alone: true, open: func(ctx context.Context, addr string) (client, error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	for _, s := range []*goredis.Script{bareSet, bareDelete} {
		if err := s.Load(ctx, c).Err(); err != nil {
			c.Close()
			return nil, err
		}
	}
	return bareClient{c, func(ctx context.Context, key string) (bool, error) {
		n, err := bareSet.EvalSha(ctx, c, []string{key}, "me", ttl.Milliseconds()).Int()
		return n == 1, err
	}, func(ctx context.Context, key string) error {
		return bareDelete.EvalSha(ctx, c, []string{key}, "me").Err()
	}}, nil
}}

// ofSet is SET NX and DEL, without an owner.
var ofSet = contender{name: "SET", bound: true, alone: true, open: func(_ context.Context, addr string) (client, error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	return bareClient{c, func(ctx context.Context, key string) (bool, error) {
		err := c.SetArgs(ctx, key, "me", goredis.SetArgs{Mode: "NX", TTL: ttl}).Err()
		if errors.Is(err, goredis.Nil) {
			return false, nil
		}
		return err == nil, err
	}, func(ctx context.Context, key string) error {
		return c.Del(ctx, key).Err()
	}}, nil
}}

type bareClient struct {
	c    *goredis.Client
	set  func(ctx context.Context, key string) (bool, error)
	free func(ctx context.Context, key string) error
}

func (c bareClient) locker(_ context.Context, name string) (locker, error) {
	return bareLocker{c, "bare:" + name}, nil
}

func (c bareClient) close() { c.c.Close() }

type bareLocker struct {
	bareClient
	key string
}

func (l bareLocker) lock(ctx context.Context) error {
	ok, err := l.set(ctx, l.key)
	if err == nil && !ok {
		return errors.New("the lock is held")
	}
	return err
}

func (l bareLocker) unlock() error { return l.free(context.Background(), l.key) }

func (l bareLocker) close() {}
