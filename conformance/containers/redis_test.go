package containers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// redisTTL is the shortest that a busy machine with the race detector keeps alive.
const redisTTL = time.Second

// owning is a backend whose Close closes the client that it is over, and the proxy before that.
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

func overRedis(t conformance.T, rdb goredis.UniversalClient, p *Proxy, o redis.Options) driver.Backend {
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

func TestRedisConformance(t *testing.T) {
	for _, k := range []Kind{Redis, Valkey} {
		t.Run(k.Name, func(t *testing.T) {
			s := Start(t, k.With(RedisDurable...))
			h := Harness(k.Name, func(t conformance.T, p *Proxy) driver.Backend {
				return overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{})
			}, s)
			h.TTL = redisTTL
			conformance.Run(t, h)
		})
	}
}

func TestRedisSentinelConformance(t *testing.T) {
	s := StartSentinel(t, Redis)
	h := Harness("redis, sentinel", func(t conformance.T, p *Proxy) driver.Backend {
		return overRedis(t, goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: s.Name, SentinelAddrs: s.Addrs(), Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{Identity: s.Name})
	})
	h.TTL = redisTTL
	h.Calls, h.Connections, h.Record = nil, nil, nil // those to the sentinels count too
	conformance.Run(t, h)
}

func TestRedisClusterConformance(t *testing.T) {
	s := StartCluster(t, Redis)
	h := Harness("redis, cluster", func(t conformance.T, p *Proxy) driver.Backend {
		return overRedis(t, goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: s.Addrs(), NewClient: func(o *goredis.Options) *goredis.Client {
				o.Dialer, o.DisableIdentity = p.Dial, true
				return goredis.NewClient(o)
			}}), p, redis.Options{})
	})
	h.TTL = redisTTL
	h.Calls, h.Connections, h.Record = nil, nil, nil // those about the slots count too
	conformance.Run(t, h)
}

// workers take turns on a few names for a while, and count what goes wrong.
type workers struct {
	wg    sync.WaitGroup
	stop  context.CancelFunc
	turns atomic.Int64
	wrong atomic.Int64
	inBy  []atomic.Pointer[dlock.Lease] // who came in last, unless it left
}

// startWorkers runs several clients on the URL. Two that trust in their holds of a name at once are an error of the test, unless free is
// set: a failover of Redis may do that.
func startWorkers(t *testing.T, url string, free bool) *workers {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &workers{stop: stop, inBy: make([]atomic.Pointer[dlock.Lease], 4)}
	for range 3 {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil), dlock.TTL(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for i := range 8 {
			name := i % len(w.inBy)
			w.wg.Go(func() {
				for ctx.Err() == nil {
					l, err := c.Mutex(fmt.Sprint("work/", name)).Lock(ctx)
					if err != nil {
						continue // of the fault that the test makes
					}
					if before := w.inBy[name].Swap(l); before != nil && before.Err() == nil && l.Err() == nil {
						w.wrong.Add(1)
					}
					<-time.After(time.Millisecond)
					w.inBy[name].CompareAndSwap(l, nil)
					if l.Unlock(context.Background()) == nil {
						w.turns.Add(1)
					}
				}
			})
		}
	}
	t.Cleanup(func() {
		stop()
		w.wg.Wait()
		if n := w.wrong.Load(); n > 0 && !free {
			t.Errorf("%d times two held one name", n)
		}
	})
	return w
}

// more waits for n more turns.
func (w *workers) more(t *testing.T, n int64) {
	t.Helper()
	from := w.turns.Load()
	await(t, "work goes on", func() bool { return w.turns.Load() >= from+n })
}

func TestRedisSentinelFailover(t *testing.T) {
	s := StartSentinel(t, Redis)
	url := "redis+sentinel://" + join(s.Addrs()) + "/" + s.Name + "/0?read_timeout=3s&dial_timeout=3s"
	w := startWorkers(t, url, true)
	w.more(t, 50)
	c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before, err := c.Mutex("token").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := s.AwaitMaster(t, nil)
	old.Kill(t)
	s.AwaitMaster(t, old)
	w.more(t, 50)
	// Whether the new master knows the hold or not: the next token is greater.
	before.Unlock(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	after, err := c.Mutex("token").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if after.Token() <= before.Token() {
		t.Errorf("token %d after the failover, %d before", after.Token(), before.Token())
	}
}

func TestRedisClusterSlotsMoveAndMastersDie(t *testing.T) {
	s := StartCluster(t, Redis)
	url := "redis+cluster://" + join(s.Addrs()) + "?read_timeout=3s&dial_timeout=3s"
	w := startWorkers(t, url, true)
	w.more(t, 50)
	key := "dlock:{work/0}"
	from := s.AwaitMaster(t, key, nil)
	for _, n := range s.Nodes[:3] {
		if n != from {
			s.Move(t, key, n)
			break
		}
	}
	w.more(t, 100)
	if n := w.wrong.Load(); n > 0 {
		t.Errorf("%d times two held one name while a slot moved", n)
	}
	now := s.AwaitMaster(t, key, nil)
	now.Kill(t)
	s.AwaitMaster(t, key, now)
	w.more(t, 100)
}

// TestRedisWaitReplicas has a grant that all replicas have, and one that a replica which stands cannot confirm.
func TestRedisWaitReplicas(t *testing.T) {
	run := func(t *testing.T, url string, replica func() *Server) {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var l *dlock.Lease
		for tries := 1; ; tries++ {
			asked := time.Now()
			if l, err = c.Mutex("a").Lock(t.Context()); err == nil {
				break
			}
			// The replicas have a second to confirm it: if the machine stood still they may have been late.
			if took := time.Since(asked); took < 900*time.Millisecond || tries == 5 {
				t.Fatalf("a grant that all replicas can have, after %s: %v", took, err)
			}
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := replica()
		r.Pause(t)
		defer r.Continue(t)
		_, err = c.Mutex("a").Lock(t.Context())
		if err == nil || errors.Is(err, dlock.ErrHeld) {
			t.Fatalf("a grant that a replica does not have: %v", err)
		}
		await(t, "what was not confirmed is given back", func() bool {
			q, err := c.Inspect(t.Context(), "a")
			return err == nil && q.Len() == 0
		})
	}
	t.Run("sentinel", func(t *testing.T) {
		s := StartSentinel(t, Redis)
		run(t, "redis+sentinel://"+join(s.Addrs())+"/"+s.Name+"/0?wait_replicas=2", func() *Server { return s.Nodes[2] })
	})
	t.Run("cluster", func(t *testing.T) {
		s := StartCluster(t, Redis)
		run(t, "redis+cluster://"+join(s.Addrs())+"?wait_replicas=1", func() *Server {
			i := slices.Index(s.Nodes[:3], s.AwaitMaster(t, "dlock:{a}", nil))
			return s.Nodes[3+i] // which follows it since the start
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
	s := StartOwn(t, Redis.With(RedisDurable...))
	open := func() *dlock.Client {
		c, err := dlock.Open(t.Context(), s.URL+"/0?ttl=1m", dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	holder, waiter := open(), open()
	held, err := holder.Mutex("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wait := func() {
		wg.Go(func() {
			l, err := waiter.Mutex("a").Lock(t.Context())
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
	await(t, "all wait", func() bool {
		q, err := holder.Inspect(t.Context(), "a")
		return err == nil && len(q.Waiters()) == 5
	})
	s.Kill(t)
	wait()
	if _, err := waiter.Mutex("a").TryLock(t.Context()); err == nil || errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock without a server: %v", err)
	}
	<-time.After(2 * time.Second) // the waiters of before notice
	s.Restart(t)
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
