package redis

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

const page = "docs/redis.md"

func overUser(t *testing.T, rdb goredis.UniversalClient) (driver.Backend, error) {
	t.Cleanup(func() { rdb.Close() })
	return redis.New(rdb, redis.Options{})
}

// everything is what all drivers do, and what Redis needs a right for besides: counting the permits
// of a semaphore.
func everything(t *testing.T, name string, open func() (driver.Backend, error)) error {
	if err := steps.Everything(t, name, open); err != nil {
		return err
	}
	b, err := open()
	if err != nil {
		return err
	}
	defer b.Close()
	for range 2 {
		r := steps.Request("permits of " + name)
		r.Mode, r.Limit = driver.Shared, 2
		if _, err := b.Acquire(t.Context(), r); err != nil {
			return err
		}
	}
	return nil
}

func TestRedisLeastRights(t *testing.T) {
	t.Parallel()
	for _, k := range []service.Kind{Redis, Valkey} {
		t.Run(k.Name, func(t *testing.T) {
			s := service.StartOwn(t, k)
			LeastRightsOf(t, page, []*service.Server{s}, ACL(t, page), everything, func(user, password string) (driver.Backend, error) {
				return overUser(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: user, Password: password}))
			})
		})
	}
}

func TestRedisRightsInCluster(t *testing.T) {
	t.Parallel()
	s := StartCluster(t, Redis)
	more := Documented(t, page, "In a Cluster `([^`]*)`")
	LeastRightsOf(t, page, s.Nodes, slices.Concat(ACL(t, page), more), everything, func(user, password string) (driver.Backend, error) {
		return overUser(t, goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs(), Username: user, Password: password}))
	})
}

// TestRedisErrorsHideThePassword looks for a password in whatever goes wrong.
func TestRedisErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	CLIOf(t, s).Must("ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all")
	nobody, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{
		"redis://app:canary@" + s.Addr + "/0",
		"redis://app:canary@" + fmt.Sprint("127.0.0.1:", nobody[0]) + "/0",
		"redis://app:canary@" + s.Addr + "/x",
		"redis://app:canary@" + s.Addr + "/0?ttl=x",
		"redis://app:canary@" + s.Addr + "/0?nonsense=1",
		"redis://app:canary@" + s.Addr + "/0?pool_size=x",
		"redis://app:canary@host:port/0",
		"redis://app:canary%zz@" + s.Addr + "/0",
		"rediss://app:canary@" + s.Addr + "/0",
		"redis+cluster://app:canary@" + s.Addr,
		"redis+sentinel://app:canary@" + s.Addr + "/nobody/0",
		"redis+sentinel://app:canary@" + s.Addr + "/nobody/0?sentinel_username=a&sentinel_password=canary",
		"redlock://app:canary@" + s.Addr + ",127.0.0.1:1,127.0.0.1:2/0",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		c, err := dlock.Open(ctx, u, dlock.Logger(nil))
		cancel()
		if err == nil {
			c.Close()
			t.Errorf("Open of %s succeeded", u)
			continue
		}
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
			if strings.Contains(text, "canary") {
				t.Errorf("the error of %s shows the password: %s", u, text)
			}
		}
		t.Log(err)
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("app", "right")
	c, err := dlock.Open(t.Context(), u.String()+"/0", dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, text := range []string{fmt.Sprintf("%v", c), fmt.Sprintf("%+v", c.Capabilities()), fmt.Sprintf("%#v", c.Capabilities())} {
		if strings.Contains(text, ":right") || strings.Contains(text, "right@") {
			t.Errorf("the client shows its password: %s", text)
		}
	}
	CLIOf(t, s).Must("ACL", "SETUSER", "app", "resetpass", ">canary")
	CLIOf(t, s).Must("CLIENT", "KILL", "USER", "app")
	if _, err := c.Mutex("a").TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGPASS") || strings.Contains(err.Error(), "right\"") {
		t.Errorf("TryLock with a password that is not valid any more: %v", err)
	}
}
