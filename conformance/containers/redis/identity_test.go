package redis

import (
	"context"
	"net"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver/redis"
)

// TestRedisOneServiceOrTwo: with a context that carries a hold, another client of the same service
// joins it, whichever way it connects. A client of another service locks on its own, however much
// the two look alike.
func TestRedisOneServiceOrTwo(t *testing.T) {
	t.Parallel()
	one, two, cluster := service.Start(t, Redis), service.StartOwn(t, Redis), StartCluster(t, Redis)
	byURL := func(url string) *dlock.Client {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	over := func(rdb goredis.UniversalClient, o redis.Options) *dlock.Client {
		t.Cleanup(func() { rdb.Close() })
		b, err := redis.New(rdb, o)
		if err != nil {
			t.Fatal(err)
		}
		c, err := dlock.New(b, dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// all have the same address
	tunnel := func(to *service.Server, db int) goredis.UniversalClient {
		return goredis.NewClient(&goredis.Options{Addr: "localhost:6379", DB: db, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, to.Addr)
		}})
	}
	clusterURL := "redis+cluster://" + cluster.Addrs()[0] + "?identity=main"
	clusterClient := func() goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: cluster.Addrs()[1:]})
	}
	for what, tt := range map[string]struct {
		a, b *dlock.Client
		same bool
	}{
		"one Cluster, by URL and by New":      {byURL(clusterURL), over(clusterClient(), redis.Options{Identity: "main"}), true},
		"one Cluster, by New and by URL":      {over(clusterClient(), redis.Options{Identity: "main"}), byURL(clusterURL), true},
		"one Cluster, without an identity":    {byURL("redis+cluster://" + cluster.Addrs()[0]), byURL("redis+cluster://" + cluster.Addrs()[1]), true},
		"one server, by URL and by New":       {byURL(one.URL), over(tunnel(one, 0), redis.Options{}), true},
		"one server, by two tunnels":          {over(tunnel(one, 0), redis.Options{}), over(goredis.NewClient(&goredis.Options{Addr: one.Addr}), redis.Options{}), true},
		"two databases, by URL":               {byURL(one.URL + "/0"), byURL(one.URL + "/1"), false},
		"two databases, by New":               {over(tunnel(one, 0), redis.Options{}), over(tunnel(one, 1), redis.Options{}), false},
		"two servers behind tunnels":          {over(tunnel(one, 0), redis.Options{}), over(tunnel(two, 0), redis.Options{}), false},
		"two servers of which one has a name": {over(tunnel(one, 0), redis.Options{Identity: "eu"}), byURL(two.URL), false},
		"two servers with two names":          {over(tunnel(one, 0), redis.Options{Identity: "eu"}), over(tunnel(two, 0), redis.Options{Identity: "us"}), false},
		"a server and a Cluster":              {byURL(one.URL), byURL(clusterURL), false},
		"two prefixes":                        {byURL(one.URL + "/0?prefix=p"), byURL(one.URL + "/0?prefix=q"), false},
		"two prefixes, and one name of both":  {byURL(one.URL + "/0?prefix=p&identity=x"), byURL(one.URL + "/0?prefix=q&identity=x"), false},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for _, opts := range [][]dlock.LockOption{nil, {dlock.FixedLease(time.Minute)}} {
				outer, err := tt.a.Mutex("identity", opts...).Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // without and with the known result
					inner, err := tt.b.Mutex("identity").Lock(outer.Context(ctx))
					if err != nil {
						t.Fatalf("under a hold of the other client: %v", err)
					}
					if joined := inner.Owner().String() != "" && inner.Token() == outer.Token(); joined != tt.same {
						t.Errorf("token %d under one of %d; want the same: %t", inner.Token(), outer.Token(), tt.same)
					}
					if err := inner.Unlock(ctx); err != nil {
						t.Error(err)
					}
				}
				if err := outer.Unlock(ctx); err != nil {
					t.Error(err)
				}
				// the hold is over, at whichever service
				over := context.WithoutCancel(outer.Context(ctx))
				if tt.same {
					_, err = tt.b.Mutex("identity").TryLock(over)
					if err == nil {
						t.Error("a lock under a hold that is over was granted")
					}
				}
				l, err := tt.b.Mutex("identity").TryLock(dlock.WithoutOwner(over, "identity"))
				if err != nil {
					t.Fatal(err)
				}
				l.Unlock(ctx)
			}
		})
	}
}
