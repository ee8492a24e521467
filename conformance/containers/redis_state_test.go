package containers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// redisKeys are the keys of a name: the hash of those who hold, the order and the requests of those who wait.
func redisKeys(name string) []string {
	base := "dlock:{" + name + "}"
	return []string{base, base + ":q", base + ":w"}
}

// TestRedisForeignKeys puts what dlock did not write under its keys, while nobody uses the name and while it is held and waited for.
func TestRedisForeignKeys(t *testing.T) {
	s := StartOwn(t, Redis)
	k := s.cli(t)
	waits := func(r driver.Request) driver.Request { r.Wait = true; return r }
	hash, order, requests := 0, 1, 2
	for _, c := range []struct {
		what string
		key  int
		args []any // of a command with the key after its first word
		free bool  // an Acquire that need not wait has no use for the key
	}{
		{"a text for the hash", hash, []any{"SET", "mine"}, false},
		{"a list for the hash", hash, []any{"RPUSH", "mine"}, false},
		{"a hash that is another's", hash, []any{"HSET", "name", "mine"}, false},
		{"a hash that looks like ours at first", hash, []any{"HSET", "group", "mine"}, false},
		{"a hash with a number of another's", hash, []any{"HSET", "n", "mine", "o", "mine"}, false},
		{"a text for the order", order, []any{"SET", "mine"}, true},
		{"a hash for the order", order, []any{"HSET", "a", "mine"}, true},
		{"a text for the requests", requests, []any{"SET", "mine"}, true},
		{"a sorted set for the requests", requests, []any{"ZADD", 1, "mine"}, true},
	} {
		for _, used := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, used before: %t", c.what, used), func(t *testing.T) {
				b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), NewProxy(), redis.Options{}).(*owning).Backend
				held, next, other := request(t.Name()), waits(request(t.Name())), request("another of "+t.Name())
				keys := redisKeys(held.Name)
				if _, err := b.Acquire(t.Context(), other); err != nil {
					t.Fatal(err)
				}
				gone := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				if used || c.free {
					if _, err := b.Acquire(t.Context(), held); err != nil {
						t.Fatal(err)
					}
				}
				if used {
					go func() { _, err := b.Acquire(ctx, next); gone <- err }()
					await(t, "one waits", func() bool { return k.Exists(k.ctx, keys...).Val() == 3 })
				} else {
					gone <- nil
				}
				if _, err := k.TxPipelined(k.ctx, func(p goredis.Pipeliner) error { // nobody asks in between
					p.Del(k.ctx, keys[c.key])
					p.Do(k.ctx, slices.Insert(slices.Clone(c.args), 1, any(keys[c.key]))...)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				state := func() (all []string) {
					for i, key := range keys {
						if i != hash || c.key == hash {
							all = append(all, k.Dump(k.ctx, key).Val())
							continue
						}
						ours := k.HGetAll(k.ctx, key).Val()
						maps.DeleteFunc(ours, func(field, _ string) bool { return field[0] == 'g' }) // what was sent twice leaves a tombstone
						all = append(all, fmt.Sprint(ours))
					}
					return all
				}
				before := state()
				check := func(what string, err error) {
					t.Helper()
					if err == nil || !strings.Contains(err.Error(), keys[0]) || !errors.As(err, new(goredis.Error)) {
						t.Errorf("%s: error %v; want the server's, with the name of the key", what, err)
					}
					for _, no := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld, driver.ErrConflict} {
						if errors.Is(err, no) {
							t.Errorf("%s: %v, of what nobody can know", what, err)
						}
					}
				}
				_, err := b.Acquire(t.Context(), waits(request(held.Name)))
				check("Acquire that would wait", err)
				if !c.free || used {
					_, err = b.Acquire(t.Context(), request(held.Name))
					check("Acquire", err)
					_, err = b.Inspect(t.Context(), held.Name)
					check("Inspect", err)
					check("Renew", b.Renew(t.Context(), []driver.Request{held})[0].Err)
					check("Break", b.Break(t.Context(), held.Name, 1, true))
					check("Release", b.Release(t.Context(), held))
					_, err = b.List(t.Context())
					check("List", err)
				}
				if used {
					err := <-gone // it asks every second
					check("the Acquire that waited", err)
				}
				cancel()
				if after := state(); !slices.Equal(after, before) {
					t.Errorf("what stood under the keys was touched: %q, before %q", after, before)
				}
				if err := b.Renew(t.Context(), []driver.Request{other})[0].Err; err != nil {
					t.Errorf("Renew of another name: %v", err)
				}
				k.must("DEL", keys[c.key])
				again := request(held.Name)
				again.Wait = true
				if c.key != hash && (used || c.free) {
					if err := b.Release(t.Context(), held); err != nil {
						t.Errorf("Release of the hold, after the mending: %v", err)
					}
				}
				if _, err := b.Acquire(t.Context(), again); err != nil {
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

// TestRedisDeletedKeys deletes some of the keys while the name is held and waited for, as a person may, or an eviction.
func TestRedisDeletedKeys(t *testing.T) {
	const ttl = 12 * time.Second // renewed every 4
	s := StartOwn(t, Redis)
	k := s.cli(t)
	params := fmt.Sprintf("ttl=%s", ttl)
	holder, one, other := openRedis(t, s, params), openRedis(t, s, params), openRedis(t, s, params)
	for _, gone := range [][]int{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}} {
		t.Run(fmt.Sprint(gone), func(t *testing.T) {
			t.Parallel()
			name := t.Name()
			keys := redisKeys(name)
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
					l, err := c.Mutex(name).Lock(t.Context())
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
			args := []any{"DEL"}
			for _, i := range gone {
				args = append(args, keys[i])
			}
			k.must(args...)
			start := time.Now()
			if gone[0] == 0 { // the hold was in it
				select {
				case <-held.Lost():
				case <-time.After(time.Minute):
					t.Fatal("the loss is not told")
				}
				if took := time.Since(start); took > ttl*2/3 {
					t.Errorf("the loss was told after %s; the next renewal was %s away at most", took, ttl/3)
				}
				if err := held.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
					t.Errorf("Unlock of what was lost: %v", err)
				}
			} else {
				<-time.After(2 * time.Second) // all look
				if n := served.Load(); n > 0 {
					t.Errorf("%d were let in beside the holder", n)
				}
				start = time.Now()
				if err := held.Unlock(t.Context()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			}
			wg.Wait()
			if took := time.Since(start); took > soon || served.Load() != waiters {
				t.Errorf("%d of %d waiters were served within %s", served.Load(), waiters, took)
			}
		})
	}
}

// TestRedisKeepsNothing: names that were used are forgotten, whatever happened under them.
func TestRedisKeepsNothing(t *testing.T) {
	const names, abreast = 100_000, 256
	s := StartOwn(t, Redis)
	k := s.cli(t)
	size := func() int64 { // the server takes its time to remove what has expired, unless somebody asks for it
		for all := k.Scan(k.ctx, 0, "*", 10_000).Iterator(); all.Next(k.ctx); {
		}
		n, err := k.DBSize(k.ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), NewProxy(), redis.Options{KeepTokens: 200 * time.Millisecond})
	var next, most atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range abreast {
		wg.Go(func() {
			for i := next.Add(1); i <= names; i = next.Add(1) {
				r := request(fmt.Sprint("once/", i))
				if _, err := b.Acquire(t.Context(), r); err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("Release: %v", err)
					return
				}
				if i%1000 == 0 {
					most.Store(max(most.Load(), k.DBSize(k.ctx).Val()))
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d names in %s; at most about %d keys at a time", names, time.Since(start), most.Load())
	if most.Load() == 0 {
		t.Error("there never was a key: the test looks at the wrong database")
	}
	await(t, "the database is empty", func() bool { return size() == 0 })

	params := "ttl=5s&keep_tokens=200ms"
	one, other := openRedis(t, s, params), openRedis(t, s, params)
	for _, c := range []struct {
		what string
		run  func(m, elsewhere dlock.Mutex)
	}{
		{"a wait", func(m, elsewhere dlock.Mutex) {
			l := redisLock(t, m)
			w := try(t, elsewhere)
			redisWaiting(t, one, m.Name(), 1)
			redisUnlock(t, l)
			redisUnlock(t, w.got("the wait", time.Now(), soon))
		}},
		{"a wait that was cancelled", func(m, elsewhere dlock.Mutex) {
			l := redisLock(t, m)
			w := try(t, elsewhere)
			redisWaiting(t, one, m.Name(), 1)
			w.cancel()
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
		await(t, "nothing is left of "+c.what, func() bool { return size() == 0 })
	}

	for tries := 1; ; tries++ {
		r := request(fmt.Sprint("a tombstone ", tries))
		r.TTL, r.Uncertain = 2*time.Second, true
		sent := time.Now()
		if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of what never was: %v", err)
		}
		n := k.Exists(k.ctx, redisKeys(r.Name)...).Val()
		if n == 0 && time.Since(sent) >= r.TTL && tries < 5 {
			continue // it may be gone already
		}
		if n != 1 {
			t.Errorf("%s after it was sent for %s a tombstone is %d keys", time.Since(sent), r.TTL, n)
		}
		break
	}
	await(t, "the tombstone is gone", func() bool { return size() == 0 })

	// Clients that are gone without a word: their holds and waits have an end too.
	c, p := behindLine(t, s, redis.Options{KeepTokens: 200 * time.Millisecond})
	redisLock(t, c.Mutex("left behind"))
	try(t, c.Mutex("left behind"))
	redisWaiting(t, one, "left behind", 1)
	t.Cleanup(p.Isolate())
	for _, key := range k.Keys(k.ctx, "*").Val() {
		if left := k.PTTL(k.ctx, key).Val(); left <= 0 || left > 26*time.Hour {
			t.Errorf("%s stays for %s", key, left)
		}
	}
}
