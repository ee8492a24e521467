package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
	_ "github.com/dlock-go/dlock/driver/redis/redlock" // redlock://
)

// TestRedisFull: on a server whose memory is full, holds are renewed, released, broken and handed
// over; only new requests are refused.
func TestRedisFull(t *testing.T) {
	for _, kind := range []service.Kind{Redis, Valkey} {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel() // it waits
			const ttl = 3 * time.Second
			s := service.StartOwn(t, kind.With("--maxmemory-policy", "noeviction"))
			k := CLIOf(t, s)
			c := openRedis(t, s, fmt.Sprintf("ttl=%s", ttl))
			held, broken := redisLock(t, c.Mutex("held")), redisLock(t, c.Mutex("broken"))
			b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{})
			unsure := steps.Request("unsure") // released with a tombstone
			if _, err := steps.Acquire(t.Context(), b, unsure); err != nil {
				t.Fatal(err)
			}
			w := steps.Try(t, openRedis(t, s, fmt.Sprintf("ttl=%s", ttl)).Mutex("held"))
			redisWaiting(t, c, "held", 1)
			k.Must("CONFIG", "SET", "maxmemory", 1)
			if err := k.Set(k.Ctx, "more", 1, 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
				t.Fatalf("the server is not full: %v", err)
			}
			<-time.After(ttl + ttl/2)
			if err := held.Err(); err != nil {
				t.Errorf("the hold after a TTL and a half: %v", err)
			}
			if err := held.Renew(t.Context()); err != nil {
				t.Errorf("Renew: %v", err)
			}
			unsure.Uncertain = true
			if err := b.Release(t.Context(), unsure); err != nil {
				t.Errorf("Release that leaves a tombstone: %v", err)
			}
			if err := c.Break(t.Context(), "broken", broken.Token(), dlock.Force()); err != nil {
				t.Errorf("Break: %v", err)
			}
			if err := held.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
			redisUnlock(t, w.Got("the waiter", time.Now(), soon))
			_, err := c.Mutex("new").TryLock(t.Context())
			if err == nil || !strings.Contains(err.Error(), "memory is full") || errors.Is(err, dlock.ErrHeld) {
				t.Errorf("TryLock of a new name: %v; want an error that says that the memory is full", err)
			}
			k.Must("CONFIG", "SET", "maxmemory", 0)
			redisUnlock(t, redisLock(t, c.Mutex("new")))
		})
	}
}

// migration is a slot of a cluster between two of its masters.
type migration struct {
	number   int64
	src, dst *CLI
	ids      [2]string
	port     int
}

// migrationOf returns that of the slot of a key, to another master.
func migrationOf(t *testing.T, c *Cluster, key string) *migration {
	t.Helper()
	from := c.Master(t, key)
	if from == nil {
		t.Fatal("no node has the slot")
	}
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	return migrationTo(t, c, key, to)
}

func migrationTo(t *testing.T, c *Cluster, key string, to *service.Server) *migration {
	t.Helper()
	from := c.Master(t, key)
	s := &migration{src: CLIOf(t, from), dst: CLIOf(t, to), port: to.Ports[0]}
	s.number = s.src.ClusterKeySlot(s.src.Ctx, key).Val()
	for i, k := range []*CLI{s.src, s.dst} {
		id, err := k.Do(k.Ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatal(err)
		}
		s.ids[i] = id
	}
	return s
}

func (s *migration) begin() {
	s.dst.Must("CLUSTER", "SETSLOT", s.number, "IMPORTING", s.ids[0])
	s.src.Must("CLUSTER", "SETSLOT", s.number, "MIGRATING", s.ids[1])
}

func (s *migration) move(keys ...any) {
	s.src.Must(append([]any{"MIGRATE", "127.0.0.1", s.port, "", 0, 5000, "KEYS"}, keys...)...)
}

// TestRedisSlotsMove: the locks of a slot are kept and served while it moves, for longer than a
// TTL, and wherever the keys are. No call is lost between nodes that do not agree yet.
func TestRedisSlotsMove(t *testing.T) {
	t.Parallel() // it waits
	const ttl = 3 * time.Second
	c := StartCluster(t, Redis)
	url := fmt.Sprintf("redis+cluster://%s?ttl=%s&keep_tokens=500ms", join(c.Addrs()), ttl)
	open := func() *dlock.Client {
		client, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	one, other := open(), open()

	// holds of which one key moves and the other does not, and one without waiters
	split := map[string]func(string) string{"its hash moves": redisKey, "its set moves": queueKey, "its hash goes": queueKey,
		"its waiter moves": queueKey, "its holder moves": redisKey, "nothing beside": nil}
	var first *steps.Attempt
	names := []string{"stays until the end", "moves at once"}
	held, waits, slots := map[string]*dlock.Lease{}, map[string]*steps.Attempt{}, map[string]*migration{}
	for name, key := range split {
		slots[name] = migrationOf(t, c, redisKey(name))
		if key == nil {
			held[name] = redisLock(t, one.Mutex(name))
			slots[name].begin()
			first = steps.Try(t, other.Mutex(name)) // it waits for longer than a TTL
			continue
		}
		if strings.HasSuffix(name, "er moves") {
			held[name] = redisLock(t, one.Mutex(name))
			waits[name] = steps.Try(t, other.Mutex(name))
			redisWaiting(t, one, name, 1)
		} else {
			held[name] = redisLock(t, one.RWMutex(name).Read())
			// a second one arrives: the set has the first
			redisUnlock(t, redisLock(t, other.RWMutex(name).Read()))
		}
		slots[name].begin()
		slots[name].move(key(name))
	}
	// The hash of a shared hold is deleted, and with it the hold, whatever the set has.
	const gone = "its hash goes"
	slots[gone].src.Must("DEL", redisKey(gone))
	for _, name := range names {
		held[name] = redisLock(t, one.Mutex(name))
		waits[name] = steps.Try(t, other.Mutex(name))
		redisWaiting(t, one, name, 1)
		slots[name] = migrationOf(t, c, redisKey(name))
		slots[name].begin()
	}
	slots[names[1]].move(redisKey(names[1]), queueKey(names[1]))
	await.From(t, held[gone].Lost())
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); <-time.After(ttl / 10) {
		for name, l := range held {
			if name == gone {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), ttl/30)
			if _, err := other.Mutex(name).TryLock(ctx); err == nil {
				t.Fatalf("a second holder of what %s, while its slot moves", name)
			}
			cancel()
			if err := l.Err(); err != nil {
				t.Fatalf("the hold of what %s, while its slot moves: %v", name, err)
			}
		}
		for _, name := range names {
			if _, err := one.Inspect(t.Context(), name); err != nil {
				t.Fatalf("Inspect of what %s, while its slot moves: %v", name, err)
			}
		}
	}
	// a request that would be the first waiter is refused, and asks again
	const alone = "nothing beside"
	ctx, cancel := context.WithTimeout(t.Context(), ttl/3)
	if _, err := other.Mutex(alone).Lock(ctx); err == nil || !strings.Contains(err.Error(), "TRYAGAIN") {
		t.Errorf("the first waiter, while the slot moves: %v", err)
	}
	cancel()
	if !first.Pending() {
		t.Errorf("the first waiter, while the slot moves: %v", first.Err)
	}
	redisUnlock(t, held[alone])
	redisUnlock(t, first.Got("the first waiter", time.Now(), soon))
	for name, key := range split {
		s := slots[name]
		for _, other := range []func(string) string{redisKey, queueKey} {
			if key == nil || other(name) != key(name) {
				s.move(other(name)) // if it is there
			}
		}
		for _, k := range []*CLI{s.dst, s.src} {
			k.Must("CLUSTER", "SETSLOT", s.number, "NODE", s.ids[1])
		}
		if key != nil && name != gone {
			redisUnlock(t, held[name])
		}
		if w := waits[name]; w != nil {
			redisUnlock(t, w.Got("the waiter for what "+name, time.Now(), soon))
		}
		redisUnlock(t, redisLock(t, other.Mutex(name)))
	}
	for _, name := range names {
		redisUnlock(t, held[name])
		redisUnlock(t, waits[name].Got("the waiter", time.Now(), soon))
		before := held[name].Token()
		held[name] = redisLock(t, one.Mutex(name)) // the last token was all that stood there
		if after := held[name].Token(); after <= before {
			t.Errorf("token %d after token %d of what %s", after, before, name)
		}
	}
	slots[names[0]].move(redisKey(names[0]))
	for _, name := range names {
		redisUnlock(t, held[name])
		s := slots[name]
		for _, k := range []*CLI{s.dst, s.src} {
			k.Must("CLUSTER", "SETSLOT", s.number, "NODE", s.ids[1])
		}
		redisUnlock(t, redisLock(t, one.Mutex(name)))
	}

	// The old node knows that the slot is gone, and the new one does not know that it has come.
	s := migrationOf(t, c, redisKey("contradictory"))
	s.src.Must("CLUSTER", "SETSLOT", s.number, "NODE", s.ids[1])
	done := make(chan struct{})
	time.AfterFunc(1200*time.Millisecond, func() {
		defer close(done)
		s.dst.Must("CLUSTER", "SETSLOT", s.number, "NODE", s.ids[1])
	})
	l, err := one.Mutex("contradictory").TryLock(t.Context())
	await.From(t, done)
	if err != nil {
		t.Fatalf("TryLock while two nodes contradict each other: %v", err)
	}
	redisUnlock(t, l)
}

// TestRedisCostsOfManyReaders: the cost of a reader for the server grows neither with their number
// nor with tombstones.
func TestRedisCostsOfManyReaders(t *testing.T) {
	const readers, few, sample = 5000, 10, 200
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, ReadTimeout: time.Minute}), netfault.NewProxy(), redis.Options{})
	abreast := func(rs []driver.Request, do func(driver.Request) error) {
		var wg sync.WaitGroup
		for some := range slices.Chunk(rs, max(1, len(rs)/50)) {
			wg.Go(func() {
				for _, r := range some {
					if err := do(r); err != nil {
						t.Error(err)
					}
				}
			})
		}
		await.All(t, &wg)
	}
	var all []driver.Request
	client := driver.NewID() // a backend serves one client
	ask := func(n int) {
		for range n {
			r := steps.Request("read by many")
			r.Client, r.Mode, r.TTL = client, driver.Shared, 10*time.Minute
			all = append(all, r)
		}
		abreast(all[len(all)-n:], func(r driver.Request) error {
			_, err := steps.Acquire(t.Context(), b, r)
			return err
		})
	}
	release := func(n int) {
		abreast(all[len(all)-n:], func(r driver.Request) error {
			r.Uncertain = true // it leaves a tombstone
			return b.Release(t.Context(), r)
		})
		all = all[:len(all)-n]
	}
	type costs struct{ arrive, renew, refuse, release Work }
	measure := func() (c costs) {
		c.arrive = k.WorkOf(func() { ask(sample) })
		c.renew = k.WorkOf(func() {
			for _, p := range b.Renew(t.Context(), all[len(all)-sample:]) {
				if p.Err != nil {
					t.Errorf("Renew: %v", p.Err)
				}
			}
		})
		c.refuse = k.WorkOf(func() {
			for range sample {
				r := steps.Request("read by many")
				if _, err := steps.Acquire(t.Context(), b, r); !errors.Is(err, driver.ErrHeld) {
					t.Errorf("Acquire of a writer: %v", err)
				}
			}
		})
		c.release = k.WorkOf(func() { release(sample) })
		return c
	}
	ask(few + sample)
	release(sample) // tombstones are in the way, however few
	before := measure()
	ask(2 * readers)
	release(readers)
	after := measure()
	for _, c := range []struct {
		what          string
		before, after Work
	}{
		{"arriving", before.arrive, after.arrive}, {"renewing", before.renew, after.renew},
		{"refusing a writer", before.refuse, after.refuse}, {"releasing", before.release, after.release},
	} {
		t.Logf("%s, %d times: %+v with %d readers; %+v with %d readers and as many tombstones", c.what, sample, c.before, few, c.after, readers)
		if c.before.Calls < sample || c.after.Calls < sample {
			t.Errorf("%s: not all calls were seen", c.what)
		}
		if c.after.Commands > c.before.Commands*5/4 || c.after.Members > c.before.Members*5/4 {
			t.Errorf("%s costs more with more readers", c.what)
		}
	}
}

// TestRedisManyDieWaiting: waiters that died are removed, some with each script, so that no script
// takes long.
func TestRedisManyDieWaiting(t *testing.T) {
	t.Parallel()
	const many, most = 450, 100
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	holder := openRedis(t, s, "ttl=1m")
	held := redisLock(t, holder.Mutex("crashes"))
	p := netfault.NewProxy()
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range many {
		r := steps.Request("crashes")
		r.Wait, r.TTL = true, time.Second
		go func() { _, _ = steps.Acquire(ctx, b, r) }()
	}
	await.That(t, "all wait", func() bool { return stored(k, "crashes") == many+1 })
	t.Cleanup(p.Isolate())
	died := func() int64 {
		return k.ZLexCount(k.Ctx, queueKey("crashes"), "[f", fmt.Sprintf("(f%016d", time.Now().UnixMicro())).Val()
	}
	await.That(t, "all have died", func() bool { return died() == many })
	ran, _ := k.scripts()
	for left := many; left > 0; {
		if q, err := holder.Inspect(t.Context(), "crashes"); err != nil || q.Len() != 1 {
			t.Fatalf("Inspect shows %d requests, %v; want that which holds", q.Len(), err)
		}
		before := ran
		ran, _ = k.scripts()
		now := stored(k, "crashes") - 1
		run, _ := k.scripts()
		n := int(run - before) // the holder renews at times, and calls may be sent again
		if now > max(0, left-most/2) || now < left-n*most {
			t.Fatalf("%d scripts left %d of %d dead waiters; each may remove at most %d", n, now, left, most)
		}
		left = now
	}
	redisUnlock(t, held)
}

// TestRedisOpenSaysWhy: Open fails soon, with the cause, and never as if the caller's context had
// ended.
func TestRedisOpenSaysWhy(t *testing.T) {
	s := service.StartOwn(t, Redis)
	CLIOf(t, s).Must("CONFIG", "SET", "requirepass", "right")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	const params = "dial_timeout=1s&read_timeout=1s"
	for _, c := range []struct{ url, want string }{
		{"rediss://" + s.Addr + "?" + params, "TLS"},
		{"rediss://" + silent.Addr().String() + "?" + params, "TLS"},
		{"rediss+cluster://" + silent.Addr().String() + "?" + params, "TLS"},
		{"rediss+sentinel://" + silent.Addr().String() + "/m?" + params, "TLS"},
		{"redlocks://127.0.0.2:1," + s.Addr + "," + silent.Addr().String(), "TLS"},
		{"redis://" + silent.Addr().String() + "?" + params, "did not answer"},
		{"redis://" + closed.Addr().String() + "?" + params, "refused"},
		{"rediss://" + closed.Addr().String() + "?" + params, "refused"},
		{"redis+cluster://" + closed.Addr().String() + "?" + params, "refused"},
		{"redis+sentinel://" + closed.Addr().String() + "/m?" + params, "refused"},
		{"redis://no-such-host.invalid?" + params, "no-such-host.invalid"},
		{"redis://:wrong@" + s.Addr + "?" + params, "the user or the password"},
		{"redis://" + s.Addr + "?" + params, "the user or the password"},
		{"redlock://:wrong@" + s.Addr + "," + closed.Addr().String() + ",127.0.0.2:1", "the user or the password"},
	} {
		t.Run(c.url, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			client, err := dlock.Open(t.Context(), c.url, dlock.Logger(nil))
			if err == nil {
				client.Close()
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "no reply") {
				t.Errorf("it says %q; want %q in it", err, c.want)
			}
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("%v matches a context's error", err)
			}
			if took := time.Since(start); took > 9*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestRedisEndedSaysItOnce: the error of a call that was not answered before its context ended has
// that cause once in its text.
func TestRedisEndedSaysItOnce(t *testing.T) {
	c, p := behindLine(t, service.Start(t, Redis), redis.Options{})
	redisUnlock(t, redisLock(t, c.Mutex("unanswered"))) // the line is up
	t.Cleanup(p.Hold(netfault.ToClient))
	for _, d := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		_, err := c.Mutex("unanswered").Lock(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || strings.Count(err.Error(), context.DeadlineExceeded.Error()) != 1 {
			t.Errorf("Lock that was not answered within %s: %v", d, err)
		}
	}
}
