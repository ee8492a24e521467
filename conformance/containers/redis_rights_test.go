package containers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// documented returns what docs/redis.md says where the expression matches, as words.
func documented(t *testing.T, expression string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(expression).FindSubmatch(page)
	if m == nil {
		t.Fatalf("docs/redis.md has nothing like %s", expression)
	}
	return strings.Fields(string(m[1]))
}

// everything does all that a client can do, with two of them, and returns the first error.
func everything(t *testing.T, name string, open func() (driver.Backend, error)) error {
	var clients [2]*dlock.Client
	var backend driver.Backend
	for i := range clients {
		b, err := open()
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		defer b.Close()
		if clients[i], err = dlock.New(b, dlock.Logger(nil), dlock.TTL(30*time.Second)); err != nil {
			return err
		}
		defer clients[i].Close()
		backend = b
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := clients[0], clients[1]
	held, err := a.Mutex(name).Lock(ctx)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	join, err := b.Mutex(name).Lock(dlock.WithOwner(ctx, held.Owner()))
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if err := join.Unlock(ctx); err != nil {
		return fmt.Errorf("unlock of a join: %w", err)
	}
	left, leave := context.WithTimeout(ctx, 200*time.Millisecond)
	defer leave()
	if _, err := b.Mutex(name).Lock(left); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("a wait that is given up: %w", err)
	}
	type result struct {
		l   *dlock.Lease
		err error
	}
	waited := make(chan result, 1)
	go func() {
		l, err := b.Mutex(name).Lock(ctx)
		waited <- result{l, err}
	}()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		running(4500 * time.Millisecond) // for so long that the subscription has to show that it lives
	}()
	select {
	case r := <-waited:
		return fmt.Errorf("wait: %w", cmpErr(r.err))
	case <-shown:
	}
	if err := held.Renew(ctx); err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	if _, err := a.Inspect(ctx, name); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if names, err := backend.(driver.Lister).List(ctx); err != nil || len(names) == 0 {
		return fmt.Errorf("list of %d: %w", len(names), cmpErr(err))
	}
	if err := held.Unlock(ctx); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	r := <-waited
	if r.err != nil {
		return fmt.Errorf("wait: %w", r.err)
	}
	for _, force := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
		if err := a.Break(ctx, name, r.l.Token(), force...); err != nil {
			return fmt.Errorf("break: %w", err)
		}
	}
	rest, err := a.Mutex(name).Lock(ctx)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	_ = rest // Close gives it back
	return errors.Join(a.Close(), b.Close())
}

// cmpErr returns the error, or another one if there is none where there has to be one.
func cmpErr(err error) error {
	if err == nil {
		return errors.New("it did not fail, nor do what it should")
	}
	return err
}

// leastRightsOf gives users the rights, and others all but one of them: the first get along, the others do not, and are told why.
func leastRightsOf(
	t *testing.T, servers []*Server, rights []string, do func(t *testing.T, name string, open func() (driver.Backend, error)) error,
	open func(user, password string) (driver.Backend, error),
) {
	t.Helper()
	const password = "canary"
	without := []string{""}
	for _, r := range rights {
		if strings.HasPrefix(r, "+") {
			without = append(without, r)
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	for i, missing := range without {
		user := fmt.Sprint("user", i)
		for _, s := range servers {
			c := s.cli(t)
			args := []any{"ACL", "SETUSER", user, "on", ">" + password}
			for _, r := range rights {
				if r != missing {
					args = append(args, r)
				}
			}
			c.must(args...)
		}
		check := func() {
			err := do(t, "rights "+user, func() (driver.Backend, error) { return open(user, password) })
			switch {
			case missing == "":
				if err != nil {
					t.Errorf("with the rights that are documented: %v", err)
				}
			case err == nil:
				t.Errorf("nothing fails without %s: it is not needed", missing)
			case !strings.Contains(err.Error(), "docs/redis.md") || !strings.Contains(err.Error(), strings.TrimPrefix(missing, "+")):
				t.Errorf("without %s the error does not say what to do: %v", missing, err)
			case strings.Contains(err.Error(), password):
				t.Errorf("the error has the password: %v", err)
			}
		}
		if missing == "+eval" {
			check() // while the server does not know the scripts
		} else {
			defer all.Go(check)
		}
	}
}

func aclOf(t *testing.T) []string {
	return documented(t, `ACL SETUSER dlock on >password (.*)`)
}

func overUser(t *testing.T, rdb goredis.UniversalClient) (driver.Backend, error) {
	t.Cleanup(func() { rdb.Close() })
	return redis.New(rdb, redis.Options{})
}

func TestRedisLeastRights(t *testing.T) {
	for _, k := range []Kind{Redis, Valkey} {
		t.Run(k.Name, func(t *testing.T) {
			s := StartOwn(t, k)
			leastRightsOf(t, []*Server{s}, aclOf(t), everything, func(user, password string) (driver.Backend, error) {
				return overUser(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: user, Password: password}))
			})
		})
	}
}

func TestRedisRightsInCluster(t *testing.T) {
	s := StartCluster(t, Redis)
	more := documented(t, "In a Cluster `([^`]*)`")
	leastRightsOf(t, s.Nodes, slices.Concat(aclOf(t), more), everything, func(user, password string) (driver.Backend, error) {
		return overUser(t, goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs(), Username: user, Password: password}))
	})
}

// everyVote does all that a client of Redlock can do.
func everyVote(t *testing.T, name string, open func() (driver.Backend, error)) error {
	b, err := open()
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer b.Close()
	ctx := t.Context()
	for _, force := range []bool{false, true} {
		r := request(fmt.Sprint(name, force))
		if _, err := b.Acquire(ctx, r); err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		if _, err := b.Acquire(ctx, request(r.Name)); !errors.Is(err, driver.ErrHeld) {
			return fmt.Errorf("acquire of what is held: %w", cmpErr(err))
		}
		if err := b.Renew(ctx, []driver.Request{r})[0].Err; err != nil {
			return fmt.Errorf("renew: %w", err)
		}
		if q, err := b.Inspect(ctx, r.Name); err != nil || q.Len() != 1 {
			return fmt.Errorf("inspect: %w", cmpErr(err))
		}
		if err := b.(driver.Breaker).Break(ctx, r.Name, 0, force); err != nil {
			return fmt.Errorf("break: %w", err)
		}
		r.Uncertain = true
		if err := b.Release(ctx, r); err != nil && !errors.Is(err, driver.ErrLost) {
			return fmt.Errorf("release: %w", err)
		}
	}
	return nil
}

func TestRedlockLeastRights(t *testing.T) {
	var f fleet
	for range 3 {
		f = append(f, StartOwn(t, Redis))
	}
	for _, s := range f { // it counts its time in seconds
		c := s.cli(t)
		await(t, "it has been up for a second", func() bool {
			info, err := c.Info(c.ctx, "server").Result()
			return err == nil && infoField(info, "uptime_in_seconds") != "0"
		})
	}
	rights := slices.Concat([]string{"~dlock:*", "-@all"}, documented(t, "its rights are `([^`]*)`"), documented(t, "`([^`]*)` with `min_uptime`"))
	leastRightsOf(t, f, rights, everyVote, func(user, password string) (driver.Backend, error) {
		var masters []goredis.UniversalClient
		for _, s := range f {
			m := goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: user, Password: password, ContextTimeoutEnabled: true})
			t.Cleanup(func() { m.Close() })
			masters = append(masters, m)
		}
		return redis.NewRedlock(masters, redis.RedlockOptions{NodeTimeout: 10 * time.Second, MinUptime: time.Millisecond})
	})
}

// TestRedisErrorsHideThePassword looks for a password in whatever goes wrong.
func TestRedisErrorsHideThePassword(t *testing.T) {
	s := StartOwn(t, Redis)
	s.cli(t).must("ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all")
	nobody, err := freePorts(1)
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
	s.cli(t).must("ACL", "SETUSER", "app", "resetpass", ">canary")
	s.cli(t).must("CLIENT", "KILL", "USER", "app")
	if _, err := c.Mutex("a").TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGPASS") || strings.Contains(err.Error(), "right\"") {
		t.Errorf("TryLock with a password that is not valid any more: %v", err)
	}
}
