package main

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// ofConcurrency is the recipe of etcd's client. Each locker has a session of its own: two that
// share one do not exclude each other.
var ofConcurrency = contender{name: "concurrency", renews: true, most: 1000, open: func(_ context.Context, addr string) (client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	return etcdClient{c}, nil
}}

type etcdClient struct{ c *clientv3.Client }

func (c etcdClient) locker(_ context.Context, name string) (locker, error) {
	s, err := concurrency.NewSession(c.c, concurrency.WithTTL(int(ttl.Seconds())))
	if err != nil {
		return nil, err
	}
	return etcdLocker{s, concurrency.NewMutex(s, "concurrency/"+name)}, nil
}

func (c etcdClient) close() { c.c.Close() }

type etcdLocker struct {
	s *concurrency.Session
	m *concurrency.Mutex
}

func (l etcdLocker) lock(ctx context.Context) error { return l.m.Lock(ctx) }

func (l etcdLocker) unlock() error { return l.m.Unlock(context.Background()) }

func (l etcdLocker) close() { l.s.Close() }
