package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// openThrough opens a Cluster or a Sentinel group over a client that reaches each server at the
// address that through has for it: the servers name each other by their real addresses. It does not
// contact them yet.
func openThrough(rawURL string, through map[string]string) (driver.Backend, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		at, ok := through[addr]
		if !ok {
			return nil, fmt.Errorf("a server named the address %s, to which there is no way", addr)
		}
		return (&net.Dialer{}).DialContext(ctx, network, at)
	}
	addrs := strings.Split(u.Host, ",")
	var rdb goredis.UniversalClient
	if u.Scheme == "redis+cluster" {
		rdb = goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: addrs, Dialer: dial, DisableIdentity: true, ContextTimeoutEnabled: true})
	} else {
		rdb = goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: strings.Trim(u.Path, "/"), SentinelAddrs: addrs,
			Dialer: dial, DisableIdentity: true, ContextTimeoutEnabled: true})
	}
	b, err := redis.New(rdb, redis.Options{})
	if err != nil {
		rdb.Close()
		return nil, err
	}
	return &owning{b, rdb}, nil
}

// owning is a backend whose Close also closes its client.
type owning struct {
	*redis.Backend
	rdb goredis.UniversalClient
}

// Close implements [driver.Backend].
func (o *owning) Close() error {
	defer o.rdb.Close()
	return o.Backend.Close()
}
