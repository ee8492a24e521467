package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// redisTTL is the shortest that a busy machine with the race detector keeps alive.
const redisTTL = time.Second

// owning is a backend whose Close also closes its client, and the proxy in front of that.
type owning struct {
	*redis.Backend
	once  sync.Once
	close func() error
}

func (b *owning) Close() error {
	err := b.Backend.Close()
	b.once.Do(func() { err = errors.Join(err, b.close()) })
	return err
}

func overRedis(t conformance.T, rdb goredis.UniversalClient, p *netfault.Proxy, o redis.Options) driver.Backend {
	t.Helper()
	b, err := redis.New(rdb, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	own := &owning{Backend: b, close: func() error {
		defer p.Close()
		return rdb.Close()
	}}
	t.Cleanup(func() { own.Close() })
	return own
}

// counts is the harness's power Stored.
func counts(rdb goredis.Cmdable) func(conformance.T, driver.Backend, string) int {
	return func(_ conformance.T, _ driver.Backend, name string) int { return stored(rdb, name) }
}

func TestRedisConformance(t *testing.T) {
	for _, k := range []service.Kind{Redis, Valkey} {
		t.Run(k.Name, func(t *testing.T) {
			s := service.Start(t, k.With(Durable...))
			h := service.Harness(k.Name, func(t conformance.T, p *netfault.Proxy) driver.Backend {
				return overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{})
			}, s)
			h.TTL = redisTTL
			h.Stored = counts(CLIOf(t, s))
			h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
				return overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{Prefix: prefix})
			}
			if k.Name != Redis.Name {
				h = service.Beside(h)
			}
			conformance.Run(t, h)
		})
	}
}

func TestRedisSentinelConformance(t *testing.T) {
	s := StartSentinel(t, Redis)
	h := service.Harness("redis, sentinel", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return overRedis(t, goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: s.Name, SentinelAddrs: s.Addrs(), Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{Identity: s.Name})
	}, s.Nodes...)
	h.TTL = redisTTL
	rdb := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs()})
	defer rdb.Close()
	h.Stored = counts(rdb)
	h.Restart = nil                   // it would be a failover
	h.Calls, h.Connections = nil, nil // those to the sentinels would count too
	h.Without = append(h.Without, "Restart")
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		rdb := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs()})
		return overRedis(t, rdb, netfault.NewProxy(), redis.Options{Identity: s.Name, Prefix: prefix})
	}
	conformance.Run(t, service.Beside(h))
}

func TestRedisClusterConformance(t *testing.T) {
	s := StartCluster(t, Redis)
	h := service.Harness("redis, cluster", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return overRedis(t, goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: s.Addrs(), NewClient: func(o *goredis.Options) *goredis.Client {
				o.Dialer, o.DisableIdentity = p.Dial, true
				return goredis.NewClient(o)
			}}), p, redis.Options{})
	}, s.Nodes...)
	h.TTL = redisTTL
	rdb := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs()})
	defer rdb.Close()
	h.Stored = counts(rdb)
	h.Restart = nil                   // it would be a failover
	h.Calls, h.Connections = nil, nil // those about the slots would count too
	h.Without = append(h.Without, "Restart")
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		rdb := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs()})
		return overRedis(t, rdb, netfault.NewProxy(), redis.Options{Prefix: prefix})
	}
	conformance.Run(t, service.Beside(h))
}

func TestRedisSentinelFailover(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t, Redis)
	url := "redis+sentinel://" + join(s.Addrs()) + "/" + s.Name + "/0?read_timeout=3s&dial_timeout=10s"
	w := steps.StartWorkers(t, url, true)
	w.More(t, 50)
	c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before, err := c.Mutex("token").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	old := s.AwaitMaster(t, nil)
	old.Kill(t)
	s.AwaitMaster(t, old)
	w.MoreWithin(t, elected, 50) // a master that a busy machine does not serve is replaced too
	// The next token is greater, whether or not the new master knows the hold.
	before.Unlock(t.Context())
	after, err := c.Mutex("token").Lock(await.Bounded(t, elected))
	if err != nil {
		t.Fatal(err)
	}
	if after.Token() <= before.Token() {
		t.Errorf("token %d after the failover, %d before", after.Token(), before.Token())
	}
}

func TestRedisClusterSlotsMoveAndMastersDie(t *testing.T) {
	t.Parallel()
	s := StartCluster(t, Redis)
	url := "redis+cluster://" + join(s.Addrs()) + "?read_timeout=3s&dial_timeout=10s"
	w := steps.StartWorkers(t, url, true)
	w.More(t, 50)
	key := "dlock:{work/0}"
	from := s.AwaitMaster(t, key, nil)
	for _, n := range s.Nodes[:3] {
		if n != from {
			s.Move(t, key, n)
			break
		}
	}
	w.More(t, 100)
	if n := w.Wrong.Load(); n > 0 {
		t.Errorf("%d times two held one name while a slot moved", n)
	}
	now := s.AwaitMaster(t, key, nil)
	// A client made by the caller, which by itself asks for the masters once a minute, keeps its
	// holds, and waits no longer than others.
	var names []string
	for i := 0; len(names) < 2; i++ {
		if name := fmt.Sprint("of a user ", i); s.Master(t, redisKey(name)) == now {
			names = append(names, name)
		}
	}
	b := overRedis(t, goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs()}), netfault.NewProxy(), redis.Options{})
	c, err := dlock.New(b, dlock.TTL(45*time.Second), dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	held := redisLock(t, c.Mutex(names[0]))
	now.Kill(t)
	killed := time.Now()
	s.AwaitMaster(t, key, now)
	other := steps.Try(t, c.Mutex(names[1]))
	other.Got("a request after a master died", time.Now(), 30*time.Second)
	if err := held.Renew(t.Context()); err != nil {
		t.Errorf("a hold of the master that died, after %s: %v", time.Since(killed), err)
	}
	w.MoreWithin(t, elected, 100)
}

// TestRedisWaitReplicas has a grant that all replicas have, and one that a stopped replica cannot
// confirm, within a time that is longer than the timeout of a connection.
func TestRedisWaitReplicas(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, url string, replica func() *service.Server) {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var l *dlock.Lease
		for tries := 1; ; tries++ {
			asked := time.Now()
			if l, err = c.Mutex("a").Lock(await.Context(t)); err == nil {
				break
			}
			// The replicas have a second to confirm it: if the machine stood still they may have
			// been late.
			if took := time.Since(asked); took < 900*time.Millisecond || tries == 5 {
				t.Fatalf("a grant that all replicas can have, after %s: %v", took, err)
			}
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := replica()
		r.Pause(t)
		_, err = c.Mutex("a").TryLock(t.Context())
		if err == nil || errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), "not confirmed by enough replicas: 1 of 2 within 1s") &&
			!strings.Contains(err.Error(), "not confirmed by enough replicas: 0 of 1 within 1s") {
			t.Fatalf("a grant that a replica does not have: %v", err)
		}
		await.That(t, "what was not confirmed is released", func() bool {
			q, err := c.Inspect(t.Context(), "a")
			return err == nil && q.Len() == 0
		})
		w := steps.Try(t, c.Mutex("a"))
		w.Returns(1500 * time.Millisecond)
		if !w.Pending() {
			t.Errorf("Lock returned while a replica stood: %v", w.Err)
		}
		r.Continue(t)
		redisUnlock(t, w.Got("Lock, when the replica goes on", time.Now(), soon))
	}
	t.Run("sentinel", func(t *testing.T) {
		s := StartSentinel(t, Redis)
		run(t, "redis+sentinel://"+join(s.Addrs())+"/"+s.Name+"/0?wait_replicas=2&read_timeout=500ms", func() *service.Server { return s.Nodes[2] })
	})
	t.Run("cluster", func(t *testing.T) {
		s := StartCluster(t, Redis)
		run(t, "redis+cluster://"+join(s.Addrs())+"?wait_replicas=1&read_timeout=500ms", func() *service.Server {
			i := slices.Index(s.Nodes[:3], s.AwaitMaster(t, "dlock:{a}", nil))
			return s.Nodes[3+i] // its replica since the start
		})
	})
}

func join(addrs []string) string {
	var s string
	for i, a := range addrs {
		if i > 0 {
			s += ","
		}
		s += a
	}
	return s
}

func TestRedisWaitsOutlastAnOutage(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis.With(Durable...))
	open := func() *dlock.Client {
		c, err := dlock.Open(t.Context(), s.URL+"/0?ttl=1m", dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	holder, waiter := open(), open()
	held, err := holder.Mutex("a").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wait := func() {
		wg.Go(func() {
			l, err := waiter.Mutex("a").Lock(await.Context(t))
			if err != nil {
				t.Errorf("a wait did not outlast the outage: %v", err)
				return
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for range 5 {
		wait()
	}
	await.That(t, "all wait", func() bool {
		q, err := holder.Inspect(t.Context(), "a")
		return err == nil && len(q.Waiters) == 5
	})
	s.Kill(t)
	wait()
	if _, err := waiter.Mutex("a").TryLock(t.Context()); err == nil || errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock without a server: %v", err)
	}
	<-time.After(2 * time.Second) // earlier waiters detect it
	s.Restart(t)
	// the client library returns an old error of dialling for up to a second
	await.That(t, "the holder reaches the server", func() bool {
		_, err := holder.Inspect(t.Context(), "a")
		return err == nil
	})
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	await.All(t, &wg)
}
