package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// through returns a client of the server that goes through a proxy.
func through(t *testing.T, s *service.Server) (*redis.Client, *netfault.Proxy) {
	t.Helper()
	p := netfault.NewProxy()
	o, err := redis.ParseURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	o.Dialer = p.Dial
	o.MaxRetries, o.DisableIdentity = -1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = await.Patience, await.Patience, await.Patience, true
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close(); p.Close() })
	return c, p
}

// within5s is for calls that have to fail, and for those that are tried again.
func within5s(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestServers(t *testing.T) {
	for _, k := range []service.Kind{Redis, Valkey} {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			s := service.StartOwn(t, k.With(Durable...))
			if !strings.HasPrefix(s.Version, k.Name+" ") {
				t.Errorf("%s calls itself %q", k.Name, s.Version)
			}
			c, p := through(t, s)
			if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			before := p.Counts().RoundTrips
			for range 10 {
				if err := c.Ping(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if n := p.Counts().RoundTrips - before; n != 10 {
				t.Errorf("10 PINGs are %d round trips", n)
			}

			s.Pause(t)
			ctx, cancel := context.WithTimeout(t.Context(), 10*await.Quiet)
			defer cancel()
			if err := c.Ping(ctx).Err(); !await.IsTimeout(err) {
				t.Errorf("PING of a paused server: %v", err)
			}
			s.Continue(t)
			if err := c.Ping(t.Context()).Err(); err != nil {
				t.Errorf("PING of a server that goes on: %v", err)
			}

			s.Pause(t)
			s.Kill(t)
			if err := c.Ping(t.Context()).Err(); err == nil || await.IsTimeout(err) {
				t.Errorf("PING of a dead server: %v", err)
			}
			s.Restart(t)
			if v, err := c.Get(t.Context(), "k").Result(); v != "v" || err != nil {
				t.Errorf("after a restart on its data, %q, %v", v, err)
			}
			s.Restart(t)
			s.RestartEmpty(t)
			if v, err := c.Get(t.Context(), "k").Result(); err != redis.Nil {
				t.Errorf("after a restart without data, %q, %v", v, err)
			}
		})
	}
}

func TestRedisReplay(t *testing.T) {
	t.Parallel()
	c, p := through(t, service.StartOwn(t, Redis))
	c.Ping(t.Context())
	r := p.Record()
	for range 3 {
		if err := c.Incr(t.Context(), "n").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Replay(""); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Get(t.Context(), "n").Int(); n != 6 || err != nil {
		t.Fatalf("after 3 INCRs and their copies n is %d, %v", n, err)
	}
	dropped := p.DropReply("incr")
	if err := c.Incr(t.Context(), "n").Err(); err == nil {
		t.Fatal("a dropped reply arrived")
	}
	await.Closed(t, "the drop", dropped)
	if n, err := c.Get(t.Context(), "n").Int(); n != 7 || err != nil {
		t.Fatalf("after an INCR without a reply n is %d, %v", n, err)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t, Redis)
	for range 3 { // a machine that stands still may look like a dead master
		if s.Master(t) == s.Nodes[0] {
			break
		}
		s = StartSentinel(t, Redis)
	}
	p := netfault.NewProxy()
	defer p.Close()
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs(), Dialer: p.Dial})
	defer c.Close()
	if err := c.Set(t.Context(), "k", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := s.Master(t)
	if old != s.Nodes[0] {
		t.Fatalf("the master is %v", old)
	}
	old.Kill(t)
	if m := s.AwaitMaster(t, old); m == old {
		t.Fatal("there was no failover")
	}
	await.That(t, "the client found the new master", func() bool {
		return c.Set(within5s(t), "k", "2", 0).Err() == nil
	})
	old.Restart(t)
	await.That(t, "the old master follows the new one", func() bool { return roleOf(old) == "slave" })
	if p.Counts().RoundTrips == 0 {
		t.Fatal("the client did not go through the proxy")
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, Valkey)
	const key = "{lock}:1"
	owner := c.Master(t, key)
	other := c.Nodes[0]
	if owner == other {
		other = c.Nodes[1]
	}

	p := netfault.NewProxy()
	defer p.Close()
	plain := redis.NewClient(&redis.Options{Addr: other.Addr, Dialer: p.Dial})
	defer plain.Close()
	if err := plain.Set(t.Context(), key, "1", 0).Err(); err == nil || err.Error() != fmt.Sprintf("MOVED %d %s", slotOf(t, plain, key), owner.Addr) {
		t.Fatalf("another node answered %v, want MOVED to %s", err, owner.Addr)
	}
	// The client knows one node; the proxy connects it to the node of a redirect.
	r := redis.NewClusterClient(steps.Newer(&redis.ClusterOptions{
		Addrs: []string{other.Addr}, Dialer: p.Dial,
	}, "ClusterStateReloadInterval", time.Second)) // a minute otherwise
	defer r.Close()
	if err := r.Set(t.Context(), key, "2", 0).Err(); err != nil {
		t.Fatal(err)
	}
	c.Move(t, key, other)
	if v, err := r.Get(t.Context(), key).Result(); v != "2" || err != nil {
		t.Fatalf("after the move, %q, %v", v, err)
	}
	heal := p.Isolate()
	if err := r.Get(within5s(t), key).Err(); err == nil {
		t.Fatal("the client is off the line, and reads")
	}
	heal()
	other.Kill(t)
	c.AwaitMaster(t, key, other)
	await.That(t, "the client found the new master", func() bool { return r.Set(within5s(t), key, "3", 0).Err() == nil })
}

func slotOf(t *testing.T, c *redis.Client, key string) int64 {
	t.Helper()
	slot, err := c.ClusterKeySlot(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return slot
}
