package main

import (
	"context"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/all"
)

// ofDlock is dlock itself, with its default settings except for the TTL. The URL ends where
// parameters may follow.
func ofDlock(url func(addr string) string) contender {
	return contender{name: "dlock", renews: true, open: func(ctx context.Context, addr string) (client, error) {
		c, err := dlock.Open(ctx, url(addr)+"ttl="+ttl.String(), dlock.Logger(nil))
		if err != nil {
			return nil, err
		}
		return dlockClient{c}, nil
	}}
}

type dlockClient struct{ c *dlock.Client }

func (c dlockClient) locker(_ context.Context, name string) (locker, error) {
	return &dlockLocker{mutex: c.c.Mutex(name)}, nil
}

func (c dlockClient) close() { c.c.Close() }

type dlockLocker struct {
	mutex dlock.Mutex
	lease *dlock.Lease
}

func (l *dlockLocker) lock(ctx context.Context) (err error) {
	l.lease, err = l.mutex.Lock(ctx)
	return err
}

func (l *dlockLocker) unlock() error { return l.lease.Unlock(context.Background()) }

func (l *dlockLocker) close() {}
