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

// everything does what all drivers do, and what else Redis needs a right for: counting the permits
// of a semaphore, and removing the set of one whose hash was deleted.
func everything(servers ...*service.Server) func(*testing.T, string, func() (driver.Backend, error)) error {
	return func(t *testing.T, name string, open func() (driver.Backend, error)) error {
		if err := steps.Everything(t, name, open); err != nil {
			return err
		}
		b, err := open()
		if err != nil {
			return err
		}
		defer b.Close()
		for i := range 6 {
			r := steps.Request("permits of " + name)
			if r.Mode, r.Limit = driver.Shared, 6; i == 3 {
				for _, s := range servers { // one of them has it, in one of its databases
					k := CLIOf(t, s)
					_, _ = k.TxPipelined(k.Ctx, func(p goredis.Pipeliner) error {
						for _, db := range []int{5, 7, 0} {
							p.Do(k.Ctx, "SELECT", db)
							p.Del(k.Ctx, redisKey(r.Name))
						}
						return nil
					})
				}
			}
			if _, err := steps.Acquire(t.Context(), b, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// byURL opens a backend by a URL, as a user.
func byURL(t *testing.T, raw, user, password string) (driver.Backend, error) {
	return dlock.OpenBackend(t.Context(), strings.Replace(raw, "://", "://"+url.UserPassword(user, password).String()+"@", 1))
}

func TestRedisLeastRights(t *testing.T) {
	t.Parallel()
	t.Run("New", func(t *testing.T) {
		s := service.StartOwn(t, Redis)
		LeastRightsOf(t, page, []*service.Server{s}, ACL(t, page), everything(s), func(user, password string) (driver.Backend, error) {
			return overUser(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: user, Password: password}))
		})
	})
	t.Run("another database, RESP2", func(t *testing.T) {
		s := service.StartOwn(t, Valkey)
		more := Documented(t, page, "other than 0 also needs `([^`]*)`")
		LeastRightsOf(t, page, []*service.Server{s}, slices.Concat(ACL(t, page), more), everything(s), func(user, password string) (driver.Backend, error) {
			return overUser(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: user, Password: password, DB: 7, Protocol: 2}))
		})
	})
	t.Run("URL, another database", func(t *testing.T) {
		s := service.StartOwn(t, Redis)
		more := Documented(t, page, "other than 0 also needs `([^`]*)`")
		LeastRightsOf(t, page, []*service.Server{s}, slices.Concat(ACL(t, page), more), everything(s), func(user, password string) (driver.Backend, error) {
			return byURL(t, s.URL+"/5", user, password)
		})
	})
}

// TestRedisRightsInCluster: with replicas that must have a grant, and while a slot moves.
func TestRedisRightsInCluster(t *testing.T) {
	t.Parallel()
	s := StartCluster(t, Redis)
	const moving = "moving"
	migrationOf(t, s, redisKey(moving)).begin()
	rights := slices.Concat(ACL(t, page), Documented(t, page, "A Cluster also needs `([^`]*)`"), Documented(t, page, "`wait_replicas` also needs `([^`]*)`"))
	all := func(t *testing.T, name string, open func() (driver.Backend, error)) error {
		if err := everything(s.Nodes...)(t, name, open); err != nil {
			return err
		}
		b, err := open()
		if err != nil {
			return err
		}
		defer b.Close()
		// its key is not there: the node redirects the client to the other one
		if _, err := b.Inspect(t.Context(), moving); err != nil {
			return err
		}
		r := steps.Request(moving)
		r.Wait = true
		if _, err := steps.Acquire(t.Context(), b, r); err != nil {
			return err
		}
		return b.Release(t.Context(), r)
	}
	LeastRightsOf(t, page, s.Nodes, rights, all, func(user, password string) (driver.Backend, error) {
		return byURL(t, "redis+cluster://"+join(s.Addrs())+"?wait_replicas=1", user, password)
	})
}

// TestRedisRightsUnderSentinel: the sentinels have users, too.
func TestRedisRightsUnderSentinel(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t, Redis)
	more := Documented(t, page, "other than 0 also needs `([^`]*)`")
	for _, n := range s.Nodes {
		CLIOf(t, n).Must(words("ACL SETUSER app on >canary", slices.Concat(ACL(t, page), more))...)
	}
	needed := Documented(t, page, "If the sentinels have users, `([^`]*)`")
	at := Documented(t, page, "suffices for theirs\\. With\\s*`([^`]*)`")
	for user, rights := range map[string][]string{"few": needed, "all": slices.Concat(needed, at), "none": at} {
		for _, w := range s.Sentinels {
			CLIOf(t, w).Must(words("ACL SETUSER "+user+" on >canary resetchannels -@all", rights)...)
		}
		raw := "redis+sentinel://app:canary@" + join(s.Addrs()) + "/" + s.Name + "/3?sentinel_username=" + user + "&sentinel_password=canary"
		open := func() (driver.Backend, error) { return dlock.OpenBackend(t.Context(), raw) }
		if user == "none" {
			b, err := open()
			if err == nil {
				b.Close()
			}
			if err == nil || !strings.Contains(err.Error(), page) || !strings.Contains(err.Error(), strings.Join(needed, "")[1:]) {
				t.Errorf("without %v: %v", needed, err)
			}
			if f := rightsOf(t, raw); f.State != dlock.StateWrong || f.Found != "missing: "+strings.Join(needed, "") {
				t.Errorf("without %v: %v", needed, f)
			}
			continue
		}
		if err := everything()(t, "rights of "+user, open); err != nil {
			t.Errorf("with %v: %v", rights, err)
		}
	}
}

// rightsOf returns what a check finds about the rights.
func rightsOf(t *testing.T, raw string) dlock.Finding {
	t.Helper()
	found, err := dlock.Check(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.About == "rights" {
			return f
		}
	}
	t.Fatalf("nothing is found of the rights: %v", found)
	return dlock.Finding{}
}

// TestRedisCheckNamesTheRight: a check names the right that is missing, and no other, for every way
// of opening.
func TestRedisCheckNamesTheRight(t *testing.T) {
	t.Parallel()
	one := service.StartOwn(t, Redis)
	cluster := StartCluster(t, Redis)
	for _, c := range []struct {
		url    string
		nodes  []*service.Server
		rights []string
	}{
		{one.URL + "/5", []*service.Server{one}, slices.Concat(ACL(t, page), Documented(t, page, "other than 0 also needs `([^`]*)`"))},
		{"redis+cluster://" + join(cluster.Addrs()) + "?wait_replicas=1", cluster.Nodes,
			slices.Concat(ACL(t, page), Documented(t, page, "A Cluster also needs `([^`]*)`"), Documented(t, page, "`wait_replicas` also needs `([^`]*)`"))},
	} {
		raw := strings.Replace(c.url, "://", "://app:canary@", 1)
		for _, missing := range append([]string{""}, c.rights...) {
			if missing != "" && missing[0] != '+' {
				continue
			}
			want := dlock.Finding{State: dlock.StateFine, Found: "the user may run all commands of the driver"}
			if missing != "" {
				want = dlock.Finding{State: dlock.StateWrong, Found: "missing: " + missing}
			}
			for i, n := range c.nodes {
				rights := c.rights
				// on one node only, except for commands that any node may get
				if missing != "" && (i == 1 || len(c.nodes) == 1 || missing == "+cluster|slots") {
					rights = append(slices.Clone(rights), "-"+missing[1:])
				}
				CLIOf(t, n).Must(words("ACL SETUSER app reset on >canary", rights)...)
			}
			if f := rightsOf(t, raw); f.State != want.State || f.Found != want.Found {
				t.Errorf("%s without %q: %v: %s; want %s", c.url, missing, f.State, f.Found, want.Found)
			}
		}
	}
}

// TestRedisErrorsHideThePassword looks for a password in whatever goes wrong.
func TestRedisErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	CLIOf(t, s).Must("ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all")
	free, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{
		"redis://app:canary@" + s.Addr + "/0",
		"redis://app:canary@" + fmt.Sprint("127.0.0.1:", free[0]) + "/0",
		"redis://app:canary@" + s.Addr + "/x",
		"redis://app:canary@" + s.Addr + "/0?ttl=x",
		"redis://app:canary@" + s.Addr + "/0?nonsense=1",
		"redis://app:canary@" + s.Addr + "/0?pool_size=x",
		"redis://app:canary@host:port/0",
		"redis://app:canary%zz@" + s.Addr + "/0",
		"rediss://app:canary@" + s.Addr + "/0",
		"redis+cluster://app:canary@" + s.Addr,
		"redis+sentinel://app:canary@" + s.Addr + "/unknown/0",
		"redis+sentinel://app:canary@" + s.Addr + "/unknown/0?sentinel_username=a&sentinel_password=canary",
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
