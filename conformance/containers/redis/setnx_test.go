package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// setNX is a backend of the format setnx whose Close also closes its client, and the proxy in front
// of that.
type setNX struct {
	*redlock.Backend
	once  sync.Once
	close func()
}

func (b *setNX) Close() error {
	err := b.Backend.Close()
	b.once.Do(b.close)
	return err
}

func overSetNX(t conformance.T, rdb goredis.UniversalClient, p *netfault.Proxy, prefix string) driver.Backend {
	t.Helper()
	b, err := redlock.New([]goredis.UniversalClient{rdb}, redlock.Options{
		Key: "lock:{name}", Prefix: prefix, RetryDelay: 10 * time.Millisecond})
	if err != nil {
		t.Fatalf("%v", err)
	}
	own := &setNX{Backend: b, close: func() {
		rdb.Close()
		p.Close()
	}}
	t.Cleanup(func() { own.Close() })
	// faults are to hit a connection that is open
	if _, err := own.Inspect(context.Background(), "warm"); err != nil {
		t.Fatalf("%v", err)
	}
	return own
}

func TestRedisSetNXConformance(t *testing.T) {
	s := service.Start(t, Redis.With(Durable...))
	h := service.Harness("redis, setnx", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return overSetNX(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true, ContextTimeoutEnabled: true}), p, "")
	}, s)
	h.TTL = redisTTL
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		return overSetNX(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), prefix)
	}
	conformance.Run(t, service.Beside(h)) // Redlock, whose steps are the same, runs all laws
}

func TestRedisSetNXSentinelConformance(t *testing.T) {
	s := StartSentinel(t, Redis)
	h := service.Harness("redis, setnx, sentinel", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return overSetNX(t, goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: s.Name, SentinelAddrs: s.Addrs(), Dialer: p.Dial, DisableIdentity: true, ContextTimeoutEnabled: true}), p, "")
	}, s.Nodes...)
	h.TTL = redisTTL
	h.Restart = nil                   // it would be a failover
	h.Calls, h.Connections = nil, nil // those to the sentinels would count too
	h.Without = append(h.Without, "Restart")
	conformance.Run(t, service.OtherConnections(h))
}

func TestRedisSetNXClusterConformance(t *testing.T) {
	s := StartCluster(t, Redis)
	h := service.Harness("redis, setnx, cluster", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return overSetNX(t, goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: s.Addrs(), ContextTimeoutEnabled: true, NewClient: func(o *goredis.Options) *goredis.Client {
				o.Dialer, o.DisableIdentity = p.Dial, true
				return goredis.NewClient(o)
			}}), p, "")
	}, s.Nodes...)
	h.TTL = redisTTL
	h.Restart = nil                   // it would be a failover
	h.Calls, h.Connections = nil, nil // those about the slots would count too
	h.Without = append(h.Without, "Restart")
	conformance.Run(t, service.OtherConnections(h))
}

// TestRedisSetNXFailover: clients go on with the master that Sentinel promotes. It may lack the
// last keys, as after any failover.
func TestRedisSetNXFailover(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t, Redis)
	w := steps.StartWorkers(t, "redis+sentinel://"+join(s.Addrs())+"/"+s.Name+"/0?read_timeout=3s&dial_timeout=10s&format=setnx&key=lock:{name}", true)
	w.More(t, 50)
	old := s.AwaitMaster(t, nil)
	old.Kill(t)
	s.AwaitMaster(t, old)
	w.MoreWithin(t, elected, 50)
}

// TestRedisSetNXCluster: the keys of a lock stay together while their slot moves, and what is
// locked anywhere is listed.
func TestRedisSetNXCluster(t *testing.T) {
	t.Parallel()
	s := StartCluster(t, Redis)
	url := "redis+cluster://" + join(s.Addrs()) + "?read_timeout=3s&dial_timeout=10s&retry_delay=20ms&ttl=30s&format=setnx&key=lock:{name}"
	w := steps.StartWorkers(t, url, false)
	w.More(t, 50)
	c := openSetNX(t, url)
	held := map[string]*dlock.Lease{}
	for i := range 8 {
		name := fmt.Sprint("held/", i)
		held[name] = steps.MustLock(t, c.Mutex(name))
	}
	names, err := c.List(t.Context())
	names = slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, "work/") })
	if slices.Sort(names); err != nil || !slices.Equal(names, slices.Sorted(maps.Keys(held))) {
		t.Errorf("List: %q, %v", names, err)
	}
	for _, key := range []string{"lock:work/0", "lock:held/0"} {
		from := s.AwaitMaster(t, key, nil)
		for _, n := range s.Nodes[:3] {
			if n != from {
				s.Move(t, key, n)
				break
			}
		}
	}
	w.More(t, 50)
	for name, l := range held {
		if err := l.Renew(t.Context()); err != nil {
			t.Errorf("Renew of %s after slots moved: %v", name, err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock of %s after slots moved: %v", name, err)
		}
	}
	// a renewal waits for keys that are on their way
	l, key := steps.MustLock(t, c.Mutex("moves")), "lock:moves"
	from := s.AwaitMaster(t, key, nil)
	to := s.Nodes[(slices.Index(s.Nodes[:3], from)+1)%3]
	slot := migrationTo(t, s, key, to)
	slot.begin()
	// however long the slot takes to move, a hold goes on where all of its keys are
	goesOn := func(where string) {
		t.Helper()
		if err := l.Renew(await.Context(t)); err != nil {
			t.Errorf("Renew with both keys on the %s node, while the slot moves: %v", where, err)
		}
		if q, err := c.Inspect(await.Context(t), "moves"); err != nil || len(q.Holders) != 1 {
			t.Errorf("Inspect with both keys on the %s node, while the slot moves: %+v, %v", where, q, err)
		}
	}
	goesOn("old")
	tries, refusal := openSetNX(t, url).Mutex("moves"), error(nil)
	await.Within(t, elected, "an answer to TryLock while the slot moves", func() bool {
		_, refusal = tries.TryLock(await.Context(t))
		return refusal == nil || !strings.Contains(refusal.Error(), "did not answer")
	})
	if refusal == nil || !strings.Contains(refusal.Error(), "is moving to another node") {
		t.Errorf("TryLock while the slot moves: %v", refusal)
	}
	slot.move(key)
	renewed := make(chan error, 1)
	go func() { renewed <- l.Renew(t.Context()) }()
	select {
	case err := <-renewed:
		t.Errorf("Renew while one key of two was elsewhere: %v", err)
	case <-time.After(300 * time.Millisecond):
		slot.move("dlock:{lock:moves}:setnx:held:lock:moves")
		if err := await.From(t, renewed); err != nil {
			t.Errorf("Renew after both keys moved: %v", err)
		}
	}
	goesOn("new")
	if err := l.Unlock(await.Context(t)); err != nil {
		t.Errorf("Unlock while the slot moves: %v", err)
	}
	s.Move(t, key, to)
	if err := steps.MustLock(t, c.Mutex("moves")).Unlock(t.Context()); err != nil {
		t.Errorf("Unlock after the slot moved: %v", err)
	}
	// a key that has no hash tag and a }, so that nothing can be kept beside it
	if _, err := c.Mutex("a}").TryLock(t.Context()); !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), "hash tag") {
		t.Errorf("TryLock of a key without a hash tag: %v", err)
	}
}
