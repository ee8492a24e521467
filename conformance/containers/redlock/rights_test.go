package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// everyVote makes every kind of call of a Redlock client.
func everyVote(t *testing.T, name string, open func() (driver.Backend, error)) error {
	b, err := open()
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer b.Close()
	ctx := t.Context()
	for _, force := range []bool{false, true} {
		r := steps.Request(fmt.Sprint(name, force))
		if _, err := steps.Acquire(ctx, b, r); err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		if _, err := steps.Acquire(ctx, b, steps.Request(r.Name)); !errors.Is(err, driver.ErrHeld) {
			return fmt.Errorf("acquire of what is held: %w", steps.CmpErr(err))
		}
		if err := b.Renew(ctx, []driver.Request{r})[0].Err; err != nil {
			return fmt.Errorf("renew: %w", err)
		}
		if q, err := b.Inspect(ctx, r.Name); err != nil || q.Len() != 1 {
			return fmt.Errorf("inspect: %w", steps.CmpErr(err))
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
		f = append(f, service.StartOwn(t, servers.Redis))
	}
	for _, s := range f { // it counts its time in seconds
		c := servers.CLIOf(t, s)
		await.That(t, "it has been up for a second", func() bool {
			info, err := c.Info(c.Ctx, "server").Result()
			return err == nil && servers.InfoField(info, "uptime_in_seconds") != "0"
		})
	}
	const page = "docs/redlock.md"
	rights := slices.Concat(servers.ACL(t, page), servers.Documented(t, page, "`min_uptime` also needs `([^`]*)`"))
	servers.LeastRightsOf(t, page, f, rights, everyVote, func(user, password string) (driver.Backend, error) {
		var masters []goredis.UniversalClient
		for _, s := range f {
			m := goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: user, Password: password, ContextTimeoutEnabled: true})
			t.Cleanup(func() { m.Close() })
			masters = append(masters, m)
		}
		return redlock.New(masters, redlock.Options{NodeTimeout: 10 * time.Second, MinUptime: time.Millisecond})
	})
}

// leastRights has a user with exactly the rights that Redlock needs.
func leastRights(t *testing.T, f fleet) {
	for _, m := range f {
		c := servers.CLIOf(t, m)
		c.Must("ACL", "SETUSER", "dlock", "on", ">canary", "~dlock:*", "-@all", "+eval", "+evalsha",
			"+get", "+set", "+exists", "+del", "+pttl", "+time", "+info")
		t.Cleanup(func() { c.Must("ACL", "DELUSER", "dlock") })
	}
	url := strings.Replace(f.url("node_timeout=10s&min_uptime=1ms"), "//", "//dlock:canary@", 1)
	c, err := dlock.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := c.Mutex("rights")
	for _, opts := range [][]dlock.BreakOption{{dlock.Force()}, nil} {
		var l *dlock.Lease
		await.That(t, "the masters have been up for a second", func() bool {
			l, err = m.TryLock(t.Context())
			return err == nil
		})
		_, inspect := c.Inspect(t.Context(), "rights")
		if err := errors.Join(l.Renew(t.Context()), inspect, c.Break(t.Context(), "rights", 0, opts...)); err != nil {
			t.Error(err)
		}
		l.Unlock(t.Context())
	}
	_, err = dlock.Open(t.Context(), strings.Replace(url, "canary", "canary2", 1))
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("Open with a wrong password: %v", err)
	}

	// A changed password affects new connections, and no lease.
	l, err := m.Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range f {
		servers.CLIOf(t, m).Must("ACL", "SETUSER", "dlock", "resetpass", ">other")
		servers.CLIOf(t, m).Must("CLIENT", "KILL", "USER", "dlock")
	}
	if err := l.Renew(t.Context()); err == nil || errors.Is(err, dlock.ErrLost) {
		t.Errorf("Renew of a user with a changed password: %v", err)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
}
