package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/dlock-go/dlock/internal/size"
)

// redisKey returns the key of a name without braces and percent signs, and queueKey that of its
// set.
func redisKey(name string) string { return "dlock:{" + name + "}" }
func queueKey(name string) string { return redisKey(name) + ":queue" }

// stored is how many requests the server keeps for a name, dead ones included.
func stored(rdb goredis.Cmdable, name string) (n int) {
	for _, kind := range []string{"s", "x", "w"} {
		n += int(rdb.ZLexCount(context.Background(), queueKey(name), "["+kind, "("+string(kind[0]+1)).Val())
	}
	if rdb.HGet(context.Background(), redisKey(name), "holder").Val() != "" {
		n++
	}
	return n
}

// waitingBehind makes a request wait behind the only other one of its name, and returns the channel
// for its error.
func waitingBehind(t *testing.T, k *CLI, b driver.Backend, next driver.Request) chan error {
	t.Helper()
	gone := make(chan error, 1)
	go func() { _, err := steps.Acquire(t.Context(), b, next); gone <- err }()
	await.That(t, "one waits", func() bool { return stored(k, next.Name) == 2 })
	return gone
}

// replaced deletes a key and runs a command on it, in one transaction, and returns what stands
// there then. args has the command, without the key that follows its first word.
func replaced(t *testing.T, k *CLI, key string, args []any) string {
	t.Helper()
	if _, err := k.TxPipelined(k.Ctx, func(p goredis.Pipeliner) error {
		p.Del(k.Ctx, key)
		p.Do(k.Ctx, slices.Insert(slices.Clone(args), 1, any(key))...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return k.Dump(k.Ctx, key).Val()
}

// TestRedisForeignKeys puts a value that dlock did not write, or that another version of it would,
// under a key, while the name is not in use and while it is held and waited for.
func TestRedisForeignKeys(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	waits := func(r driver.Request) driver.Request { r.Wait = true; return r }
	const notOurs = "holds something that dlock did not write"
	for _, c := range []struct {
		what string
		args []any  // of a command with the key after its first word
		says string // in every error
	}{
		{"a text", []any{"SET", "mine"}, notOurs},
		{"a hash", []any{"HSET", "name", "mine"}, notOurs},
		{"a sorted set that is another's", []any{"ZADD", 1, "mine"}, notOurs},
		{"a sorted set of an earlier version", []any{"ZADD", 0, "!2 1795000000000000"}, "has the format 2 of dlock; this client has 3"},
		{"a hash of a later version", []any{"HSET", "format", "4", "else", "x"}, "has the format 4 of dlock; this client has 3"},
		{"a hash of a version much later", []any{"HSET", "format", "20", "holder", "x"}, "written by another version of dlock"},
		{"a hash without a token", []any{"HSET", "format", "3"}, "the field token of "},
		{"a hash with a token that is no number", []any{"HSET", "format", "3", "token", "many"}, "the field token of "},
		{"a hash with half a holder", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", driver.NewID().String()}, "the field until of "},
		{"a hash whose time is no number", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "", "until", "soon", "flags", "-", "queue", "0", "kept", "0"}, "the field until of "},
		{"a hash without flags", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "", "until", "0", "queue", "0", "kept", "0"}, "the field flags of "},
		{"a hash without the time of its set", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "", "until", "0", "flags", "-", "kept", "0"}, "the field queue of "},
		{"a hash whose set has no time", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "", "until", "0", "flags", "-", "queue", "yes", "kept", "0"}, "the field queue of "},
		{"a hash that expires at no number", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "", "until", "nan", "flags", "-", "queue", "0", "kept", "0"}, "the field until of "},
		{"a hash that never expires", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "", "until", "inf", "flags", "-", "queue", "0", "kept", "0"}, "the field until of "},
		{"a hash with a token that is too large", []any{"HSET", "format", "3", "token", "1e300", "holder", "", "until", "0", "flags", "-", "queue", "0", "kept", "0"}, "the field token of "},
		{"a hash with a token that is too long", []any{"HSET", "format", "3", "token", "11795000000000000", "holder", "", "until", "0", "flags", "-", "queue", "0", "kept", "0"}, "the field token of "},
		{"a hash with a negative token", []any{"HSET", "format", "3", "token", "-1795000000000000", "holder", "", "until", "0", "flags", "-", "queue", "0", "kept", "0"}, "the field token of "},
		{"a hash kept for half a microsecond", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "", "until", "0", "flags", "-", "queue", "0", "kept", "0.5"}, "the field kept of "},
		{"a held hash without a client", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "label", "x", "ttl", "30000000", "since", "1795000000000000", "mode", "shared"}, "the field client of "},
		{"a held hash with an empty client", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "client", "", "label", "x", "ttl", "30000000", "since", "1795000000000000", "mode", "shared"}, "the field client of "},
		{"a held hash without a label", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "client", "0e8a7d6c5b4a39281706f5e4d3c2b1a0", "ttl", "30000000", "since", "1795000000000000", "mode", "shared"}, "the field label of "},
		{"a held hash with a mode that dlock has not", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "client", "0e8a7d6c5b4a39281706f5e4d3c2b1a0", "label", "x", "ttl", "30000000", "since", "1795000000000000", "mode", "permit of 0"}, "the field mode of "},
		{"a held hash without a mode", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "client", "0e8a7d6c5b4a39281706f5e4d3c2b1a0", "label", "x", "ttl", "30000000", "since", "1795000000000000"}, "the field mode of "},
		{"a held hash whose holder has no ID", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "zz zz", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "client", "0e8a7d6c5b4a39281706f5e4d3c2b1a0", "label", "x", "ttl", "30000000", "since", "1795000000000000", "mode", "shared"}, "the field holder of "},
		{"a held hash with flags that dlock has not", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "a b", "queue", "0", "kept", "1895000000000000", "client", "0e8a7d6c5b4a39281706f5e4d3c2b1a0", "label", "x", "ttl", "30000000", "since", "1795000000000000", "mode", "shared"}, "the field flags of "},
		{"a held hash without a TTL", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "client", "0e8a7d6c5b4a39281706f5e4d3c2b1a0", "label", "x", "since", "1795000000000000", "mode", "shared"}, "the field ttl of "},
		{"a held hash since no number", []any{"HSET", "format", "3", "token", "1795000000000000", "holder", "5b6f1d0a9c3e48d2a7f0c1b2d3e4f506", "until", "1895000000000000", "flags", "-", "queue", "0", "kept", "1895000000000000", "client", "0e8a7d6c5b4a39281706f5e4d3c2b1a0", "label", "x", "ttl", "30000000", "since", "-1", "mode", "shared"}, "the field since of "},
	} {
		for _, used := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, used before: %t", c.what, used), func(t *testing.T) {
				b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{}).(*owning).Backend
				held, next, other := steps.Request(t.Name()), waits(steps.Request(t.Name())), steps.Request("another of "+t.Name())
				key := redisKey(held.Name)
				if _, err := steps.Acquire(t.Context(), b, other); err != nil {
					t.Fatal(err)
				}
				var gone chan error
				if used {
					steps.Acquired(t, b, held)
					gone = waitingBehind(t, k, b, next)
				}
				before := replaced(t, k, key, c.args)
				check := func(what string, err error) {
					t.Helper()
					if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), c.says) || !errors.As(err, new(goredis.Error)) {
						t.Errorf("%s: error %v; want the server's, with the name of the key, that says %q", what, err, c.says)
					}
					if other := strings.Contains(c.what, "version"); errors.Is(err, driver.ErrUnsupported) != other {
						t.Errorf("%s: %v matches ErrUnsupported: %t", what, err, !other)
					}
					for _, no := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld, driver.ErrConflict} {
						if errors.Is(err, no) {
							t.Errorf("%s: %v, of something that cannot be known", what, err)
						}
					}
				}
				_, err := steps.Acquire(t.Context(), b, waits(steps.Request(held.Name)))
				check("Acquire that would wait", err)
				_, err = steps.Acquire(t.Context(), b, steps.Request(held.Name))
				check("Acquire", err)
				_, err = b.Inspect(t.Context(), held.Name)
				check("Inspect", err)
				check("Renew", b.Renew(t.Context(), []driver.Request{held})[0].Err)
				check("Break", b.Break(t.Context(), held.Name, 1, true))
				check("Release", b.Release(t.Context(), held))
				_, err = b.List(t.Context())
				check("List", err)
				if used {
					check("the Acquire that waited", await.From(t, gone)) // it asks every second
				}
				if after := k.Dump(k.Ctx, key).Val(); after != before {
					t.Errorf("what stood under the key was touched: %q, before %q", after, before)
				}
				if err := b.Renew(t.Context(), []driver.Request{other})[0].Err; err != nil {
					t.Errorf("Renew of another name: %v", err)
				}
				k.Must("DEL", key)
				again := waits(steps.Request(held.Name))
				if _, err := steps.Acquire(t.Context(), b, again); err != nil {
					t.Errorf("Acquire after the mending: %v", err)
				}
				for _, r := range []driver.Request{again, other} {
					if err := b.Release(t.Context(), r); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
}

// TestRedisForeignSets puts a value that dlock did not write under the second key. A call that
// needs that key fails with its name, and changes nothing; other calls succeed. The set of a lock
// whose hash was deleted is dlock's, and means nothing.
func TestRedisForeignSets(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	waits := func(name string) driver.Request { r := steps.Request(name); r.Wait = true; return r }
	for _, c := range []struct {
		what string
		args []any // of a command with the key after its first word
	}{
		{"a text", []any{"SET", "mine"}},
		{"a sorted set that is another's", []any{"ZADD", 1, "mine"}},
		{"a sorted set that has no time", []any{"ZADD", 0, "!mine"}},
	} {
		for _, used := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, used before: %t", c.what, used), func(t *testing.T) {
				b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{}).(*owning).Backend
				held, next := steps.Request(t.Name()), waits(t.Name())
				key := queueKey(held.Name)
				steps.Acquired(t, b, held)
				var gone chan error
				if used {
					gone = waitingBehind(t, k, b, next)
				}
				before := replaced(t, k, key, c.args)
				check := func(what string, err error) {
					t.Helper()
					if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the key %q holds something that dlock did not write", key)) {
						t.Errorf("%s: error %v; want one that names %q", what, err, key)
					}
				}
				_, err := steps.Acquire(t.Context(), b, waits(held.Name))
				check("Acquire that would wait", err)
				if used {
					check("the Acquire that waited", await.From(t, gone)) // it asks every second
					_, err = b.Inspect(t.Context(), held.Name)
					check("Inspect", err)
					check("Break", b.Break(t.Context(), held.Name, 1, true))
					check("Renew", steps.Renewed(b, held))
					check("Release", b.Release(t.Context(), held))
				} else {
					if _, err := b.Inspect(t.Context(), held.Name); err != nil {
						t.Errorf("Inspect: %v", err)
					}
					if err := steps.Renewed(b, held); err != nil {
						t.Errorf("Renew: %v", err)
					}
				}
				if after := k.Dump(k.Ctx, key).Val(); after != before {
					t.Errorf("what stood under the key was touched: %q, before %q", after, before)
				}
				k.Must("DEL", key)
				steps.Released(t, b, held)
				again := waits(held.Name)
				steps.Acquired(t, b, again)
				steps.Released(t, b, again)
			})
		}
	}
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{})
	old, reader := steps.Asked(b, "old", time.Minute), steps.Asked(b, "old", time.Minute)
	old.Mode, reader.Mode = driver.Shared, driver.Shared
	steps.Acquired(t, b, old)
	k.Must("DEL", redisKey("old"))
	steps.Acquired(t, b, reader)
	if q := steps.Queue(t, b, "old"); q.Len() != 1 || q.Arrivals[0].ID != reader.ID {
		t.Errorf("beside what is left of a lock whose hash was deleted there stands %v", q)
	}
	if err := steps.Renewed(b, old); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a renewal of what was deleted: %v", err)
	}
}

// TestRedisDeletedKeys deletes the key while the name is held and waited for, as an operator or an
// eviction may.
func TestRedisDeletedKeys(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second // renewed every 4
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	params := fmt.Sprintf("ttl=%s", ttl)
	holder, one, other := openRedis(t, s, params), openRedis(t, s, params), openRedis(t, s, params)
	name := t.Name()
	held := redisLock(t, holder.Mutex(name))
	var inside, served atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	last := held.Token()
	const waiters = 8
	for i := range waiters {
		c := one
		if i%2 == 1 {
			c = other
		}
		wg.Go(func() {
			l, err := c.Mutex(name).Lock(await.Context(t))
			if err != nil {
				t.Errorf("Lock: %v", err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two waiters are in")
			}
			<-time.After(20 * time.Millisecond)
			mu.Lock()
			if l.Token() <= last {
				t.Errorf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
			mu.Unlock()
			served.Add(1)
			inside.Add(-1)
			if err := l.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		})
	}
	redisWaiting(t, holder, name, waiters)
	k.Must("DEL", redisKey(name))
	start := time.Now()
	select {
	case <-held.Lost():
	case <-time.After(time.Minute):
		t.Fatal("the loss is not signalled")
	}
	if took := time.Since(start); took > ttl*2/3 {
		t.Errorf("the loss was signalled after %s; the next renewal was %s away at most", took, ttl/3)
	}
	if err := held.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock of what was lost: %v", err)
	}
	await.All(t, &wg)
	if took := time.Since(start); took > soon || served.Load() != waiters {
		t.Errorf("%d of %d waiters were served within %s", served.Load(), waiters, took)
	}
}

// TestRedisKeepsNothing: the keys of used names expire, whatever happened under them.
func TestRedisKeepsNothing(t *testing.T) {
	t.Parallel() // it waits
	const abreast = 256
	names := int64(size.Longer(10_000))
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	// the server removes expired keys late, unless a command reads them
	size := func() int64 {
		for all := k.Scan(k.Ctx, 0, "*", 10_000).Iterator(); all.Next(k.Ctx); {
		}
		n, err := k.DBSize(k.Ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{KeepTokens: 200 * time.Millisecond})
	var next, most atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range abreast {
		wg.Go(func() {
			for i := next.Add(1); i <= names; i = next.Add(1) {
				r := steps.Request(fmt.Sprint("once/", i))
				r.TTL = 10 * time.Second // and that of the tombstone if Release is sent twice
				if _, err := steps.Acquire(t.Context(), b, r); err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("Release: %v", err)
					return
				}
				if i%1000 == 0 {
					most.Store(max(most.Load(), k.DBSize(k.Ctx).Val()))
				}
			}
		})
	}
	await.All(t, &wg)
	t.Logf("%d names in %s; at most about %d keys at a time", names, time.Since(start), most.Load())
	if most.Load() == 0 {
		t.Error("there never was a key: the test looks at the wrong database")
	}
	await.That(t, "the database is empty", func() bool { return size() == 0 })

	params := "ttl=5s&keep_tokens=200ms"
	one, other := openRedis(t, s, params), openRedis(t, s, params)
	for _, c := range []struct {
		what string
		run  func(m, elsewhere dlock.Mutex)
	}{
		{"a wait", func(m, elsewhere dlock.Mutex) {
			l := redisLock(t, m)
			w := steps.Try(t, elsewhere)
			redisWaiting(t, one, m.Name(), 1)
			redisUnlock(t, l)
			redisUnlock(t, w.Got("the wait", time.Now(), soon))
		}},
		{"a wait that was cancelled", func(m, elsewhere dlock.Mutex) {
			l := redisLock(t, m)
			w := steps.Try(t, elsewhere)
			redisWaiting(t, one, m.Name(), 1)
			w.Cancel()
			redisWaiting(t, one, m.Name(), 0)
			redisUnlock(t, l)
		}},
		{"a join", func(m, elsewhere dlock.Mutex) {
			l := redisLock(t, m)
			j, err := elsewhere.Lock(dlock.WithOwner(t.Context(), l.Owner()))
			if err != nil {
				t.Fatal(err)
			}
			redisUnlock(t, l)
			redisUnlock(t, j)
		}},
		{"a break", func(m, _ dlock.Mutex) {
			l := redisLock(t, m)
			if err := one.Break(t.Context(), m.Name(), l.Token()); err != nil {
				t.Error(err)
			}
			<-l.Lost()
		}},
		{"a break by force", func(m, _ dlock.Mutex) {
			l := redisLock(t, m)
			if err := one.Break(t.Context(), m.Name(), l.Token(), dlock.Force()); err != nil {
				t.Error(err)
			}
			<-l.Lost()
		}},
	} {
		m := one.Mutex(c.what)
		c.run(m, other.Mutex(c.what))
		await.That(t, "nothing is left of "+c.what, func() bool { return size() == 0 })
	}

	for tries := 1; ; tries++ {
		r := steps.Request(fmt.Sprint("a tombstone ", tries))
		r.TTL, r.Uncertain = 2*time.Second, true
		sent := time.Now()
		if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of what never was: %v", err)
		}
		n := k.Exists(k.Ctx, queueKey(r.Name)).Val()
		if n == 0 && time.Since(sent) >= r.TTL && tries < 5 {
			continue // it may be gone already
		}
		if n != 1 {
			t.Errorf("%s after it was sent for %s a tombstone is in %d keys", time.Since(sent), r.TTL, n)
		}
		break
	}
	await.That(t, "the tombstone is gone", func() bool { return size() == 0 })

	// Clients that disappeared without a release, and no later use of the name.
	const keep, ttl = 200 * time.Millisecond, 2 * time.Second
	var gone []*netfault.Proxy
	for range 2 {
		p := netfault.NewProxy()
		b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{KeepTokens: keep})
		c, err := dlock.New(b, dlock.Logger(nil), dlock.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		steps.Try(t, c.Mutex("left behind"))
		gone = append(gone, p)
	}
	await.That(t, "one holds and one waits", func() bool { return stored(k, "left behind") == 2 })
	for _, p := range gone {
		t.Cleanup(p.Isolate())
	}
	// a waiter is kept for 3 s at least
	if left := k.PTTL(k.Ctx, redisKey("left behind")).Val(); left > 3*time.Second+keep+keep/4 {
		t.Errorf("what a process left behind stays for %s", left)
	}
	await.Within(t, soon, "what was left behind is gone", func() bool { return size() == 0 })
}

// A message of a grant counts only for the place that it names: one of an earlier stay in the queue
// that arrives late grants nothing.
func TestRedisMessageOfAnotherStay(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	holder, _ := proxied(t, s)
	c, _ := proxied(t, s)
	held, err := holder.Mutex("stay").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *dlock.Lease, 1)
	go func() {
		l, err := c.Mutex("stay").Lock(await.Context(t))
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	counter := CLIOf(t, s)
	q := redisWaiting(t, holder, "stay", 1)
	counter.listening(clientsOf(q)...)
	w := q.Waiters[0]
	asked, _ := counter.scripts()
	for range 3 {
		place := time.Now().Add(-time.Minute).UnixMicro()
		counter.Must("PUBLISH", redisChannel(clientOf(w)), fmt.Sprintf("%s %d %d %d", w.ID, place, uint64(held.Token())+1, 30_000_000))
	}
	await.That(t, "it asks the server", func() bool { now, _ := counter.scripts(); return now > asked })
	select {
	case l := <-got:
		t.Fatalf("two hold it: %v", l)
	case <-time.After(300 * time.Millisecond):
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := await.From(t, got); l == nil || l.Unlock(t.Context()) != nil {
		t.Error("it is not granted in its turn")
	}
}

// The time of a hold that a message proves counts from the call whose answer was that the request
// waits, whenever the grant and the message came.
func TestRedisGrantCountsFromTheCallBeforeIt(t *testing.T) {
	s := service.StartOwn(t, Redis)
	p := netfault.NewProxy()
	rdb := goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true, ReadTimeout: 30 * time.Second})
	b := overRedis(t, rdb, p, redis.Options{GrantWindow: 30 * time.Second})
	counter := CLIOf(t, s)
	for range 20 {
		held := steps.Asked(b, "counts", time.Hour)
		steps.Acquired(t, b, held)
		waits := steps.Waiting(b, "counts", time.Hour)
		var g driver.Grant
		got := make(chan error, 1)
		go func() {
			var err error
			g, err = steps.Acquire(t.Context(), b, waits)
			got <- err
		}()
		await.That(t, "it waits", func() bool { return len(steps.Queue(t, b, "counts").Waiters()) == 1 })
		counter.listening(held.Client) // the client of both
		last, since := time.Now(), int64(0)
		await.That(t, "it has asked", func() bool {
			n, _ := counter.scripts()
			if n != since {
				last, since = time.Now(), n
			}
			return time.Since(last) > 300*time.Millisecond
		})
		steps.Released(t, b, held)
		if err := await.From(t, got); err != nil {
			t.Fatal(err)
		}
		now, _ := counter.scripts()
		steps.Released(t, b, waits)
		if now != since+1 {
			continue // it asked again meanwhile
		}
		if g.SentAt.After(last) || g.TTL != waits.TTL {
			t.Errorf("granted for %s from %s after the call that proved it", g.TTL, g.SentAt.Sub(last))
		}
		return
	}
	t.Error("it never waited for 300 ms without asking")
}
