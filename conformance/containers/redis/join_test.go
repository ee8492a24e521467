package redis

import (
	"errors"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// TestRedisJoinsTellServicesApart: a join of an owner at another service fails with ErrLost and
// leaves nothing, however alike the two look. A join over another way to the same service is
// granted.
func TestRedisJoinsTellServicesApart(t *testing.T) {
	t.Parallel()
	one, two := service.StartOwn(t, Redis), service.StartOwn(t, Redis)
	// two tunnels that begin at one address
	tunnel := func(to *service.Server, db int) *redis.Backend {
		p := netfault.NewProxy()
		rdb := goredis.NewClient(&goredis.Options{Addr: to.Addr, DB: db, Dialer: p.Dial})
		return overRedis(t, rdb, p, redis.Options{}).(*owning).Backend
	}
	open := func(url string) *redis.Backend {
		b, err := dlock.OpenBackend(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b.(*redis.Backend)
	}
	cluster := StartCluster(t, Redis)
	byNew := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: cluster.Addrs()[1:]})
	for _, c := range []struct {
		what string
		a, b *redis.Backend
		same bool
	}{
		{"two servers", tunnel(one, 0), tunnel(two, 0), false},
		{"two databases", tunnel(one, 0), tunnel(one, 1), false},
		{"a server, twice", tunnel(one, 0), open(one.URL + "/0"), true},
		{"a Cluster, twice", open("redis+cluster://" + join(cluster.Addrs())), overRedis(t, byNew, netfault.NewProxy(), redis.Options{}).(*owning).Backend, true},
	} {
		held := steps.Request("join/" + c.what)
		steps.Acquired(t, c.a, held)
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			join := steps.Request(held.Name)
			join.Owner, join.Mode = held.ID, mode
			_, err := steps.Acquire(t.Context(), c.b, join)
			switch {
			case c.same && err != nil:
				t.Errorf("%s: a join: %v", c.what, err)
			case c.same:
				steps.Released(t, c.b, join)
			case !errors.Is(err, driver.ErrLost):
				t.Errorf("%s: a join of an owner that is not known there: %v", c.what, err)
			default:
				if n := c.b.Capabilities().Identity; n != "" {
					t.Errorf("%s: the identity is %q, which was not set", c.what, n)
				}
				if q := steps.Queue(t, c.b, held.Name); q.Len() != 0 {
					t.Errorf("%s: %d requests are left there", c.what, q.Len())
				}
			}
		}
		steps.Released(t, c.a, held)
	}
	for what, k := range map[string]*CLI{"the other server": CLIOf(t, two)} {
		if n := k.DBSize(k.Ctx).Val(); n != 0 {
			t.Errorf("%s has %d keys", what, n)
		}
	}
}
