package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// everyKeyEnds fails the test if a key of the server has no expiry.
func everyKeyEnds(t *testing.T, k *CLI, when string) {
	t.Helper()
	keys, err := k.Keys(k.Ctx, "dlock:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if d := k.PTTL(k.Ctx, key).Val(); d == -1 {
			t.Errorf("%s: %s stands for ever: %q", when, key, k.Dump(k.Ctx, key).Val())
		}
	}
}

// TestRedisRefusedHalfWay takes away each right that a script needs. A user without all of them
// leaves nothing: neither a hold nor a key without an expiry.
func TestRedisRefusedHalfWay(t *testing.T) {
	for _, kind := range []service.Kind{Redis, Valkey} {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := service.StartOwn(t, kind)
			k := CLIOf(t, s)
			all := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{})
			rights := ACL(t, page)
			for _, missing := range []string{"+time", "+hmget", "+hset", "+exists", "+del", "+zrange", "+zadd", "+zrem", "+zlexcount", "+pexpire", "+publish"} {
				k.Must(words("ACL SETUSER app reset on >canary", append(rights, "-"+missing[1:]))...)
				b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: "app", Password: "canary"}), netfault.NewProxy(), redis.Options{})
				permit := func(name string, mode driver.Mode) driver.Request {
					r := steps.Asked(all, name, time.Minute)
					r.Mode = mode
					if mode == driver.Shared {
						r.Limit = 3
					}
					return r
				}
				refused := 0
				for _, c := range []struct {
					what  string
					mode  driver.Mode
					setUp func(name string) (holds int)
				}{
					{"new", driver.Exclusive, func(string) int { return 0 }},
					{"used", driver.Exclusive, func(name string) int {
						r := permit(name, driver.Exclusive)
						steps.Acquired(t, all, r)
						steps.Released(t, all, r)
						return 0
					}},
					{"new for a permit", driver.Shared, func(string) int { return 0 }},
					{"semaphore", driver.Shared, func(name string) int {
						steps.Acquired(t, all, permit(name, driver.Shared))
						steps.Acquired(t, all, permit(name, driver.Shared))
						return 2
					}},
					{"without its hash", driver.Shared, func(name string) int {
						steps.Acquired(t, all, permit(name, driver.Shared))
						steps.Acquired(t, all, permit(name, driver.Shared))
						k.Must("DEL", redisKey(name))
						steps.Acquired(t, all, permit(name, driver.Shared))
						return 1
					}},
					{"held", driver.Exclusive, func(name string) int {
						steps.Acquired(t, all, permit(name, driver.Exclusive))
						return 1
					}},
					{"expired", driver.Exclusive, func(name string) int {
						r := permit(name, driver.Exclusive)
						r.TTL = 50 * time.Millisecond
						steps.Acquired(t, all, r)
						await.That(t, "it has expired", func() bool {
							return k.HGet(k.Ctx, redisKey(name), "until").Val() < fmt.Sprint(clock(k).UnixMicro())
						})
						return 0
					}},
				} {
					name := missing[1:] + "/" + c.what
					holds := c.setUp(name)
					r := permit(name, c.mode)
					_, err := steps.Acquire(t.Context(), b, r)
					when := fmt.Sprintf("without %s, a name that is %s", missing, c.what)
					switch {
					case err == nil:
						if err = b.Release(t.Context(), r); err != nil {
							refused++
							continue // it may do the one and not the other
						}
					case !errors.Is(err, driver.ErrHeld):
						refused++
						if !strings.Contains(err.Error(), page) || !strings.Contains(err.Error(), "'"+missing[1:]+"'") {
							t.Errorf("%s: %v", when, err)
						}
					}
					await.Within(t, soon, when+": nothing of it stands", func() bool { return len(steps.Queue(t, all, name).Arrivals) == holds })
				}
				refused += redisRefusedBeside(t, k, all, b, missing)
				if refused == 0 && missing != "+publish" {
					t.Errorf("nothing was refused without %s", missing)
				}
				everyKeyEnds(t, k, "without "+missing)
				b.Close()
			}
			// granted by the master, but waiting for replicas is refused
			k.Must(words("ACL SETUSER app reset on >canary", rights)...)
			b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: "app", Password: "canary"}), netfault.NewProxy(), redis.Options{WaitReplicas: 1})
			for _, wait := range []bool{false, true} {
				r := steps.Request(fmt.Sprint("wait/", wait))
				r.Wait = wait
				if _, err := steps.Acquire(t.Context(), b, r); err == nil || !strings.Contains(err.Error(), "'wait'") {
					t.Errorf("without +wait: %v", err)
				}
				await.Within(t, soon, "nothing of it stands", func() bool { return steps.Queue(t, all, r.Name).Len() == 0 })
			}
		})
	}
}

// redisRefusedBeside makes a client that lacks a right change the set of a lock. It returns how
// often that was refused; everything then stands as before.
func redisRefusedBeside(t *testing.T, k *CLI, all, b driver.Backend, missing string) (refused int) {
	for _, c := range []struct {
		what string
		do   func(held driver.Request) error
	}{
		{"Renew", func(held driver.Request) error { return steps.Renewed(b, held) }},
		{"Break", func(held driver.Request) error {
			return b.(driver.Breaker).Break(t.Context(), held.Name, steps.Queue(t, all, held.Name).Arrivals[0].Token, false)
		}},
		{"Break by force", func(held driver.Request) error {
			return b.(driver.Breaker).Break(t.Context(), held.Name, steps.Queue(t, all, held.Name).Arrivals[0].Token, true)
		}},
		{"Raise", func(held driver.Request) error {
			if held.Mode == driver.Shared {
				return nil
			}
			return b.(driver.Raiser).Raise(t.Context(), held, 8e15)
		}},
		{"Inspect", func(held driver.Request) error { _, err := b.Inspect(t.Context(), held.Name); return err }},
		{"Release", func(held driver.Request) error { return b.Release(t.Context(), held) }},
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			name := fmt.Sprint(missing[1:], "/", c.what, "/", mode)
			held, next := steps.Asked(all, name, time.Minute), steps.Asked(all, name, time.Minute)
			held.Mode, next.Wait = mode, true
			steps.Acquired(t, all, held)
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { _, err := steps.Acquire(ctx, all, next); over <- err }()
			await.That(t, "one waits", func() bool { return steps.Queue(t, all, name).Len() == 2 })
			if err := c.do(held); err != nil {
				refused++
				if !strings.Contains(err.Error(), "'"+missing[1:]+"'") {
					t.Errorf("%s of %s without %s: %v", c.what, mode, missing, err)
				}
				// the contents of messages are not undone
				if q := steps.Queue(t, all, name); missing != "+publish" && (q.Len() != 2 || q.Arrivals[0].ID != held.ID || q.Arrivals[1].Token != 0) {
					t.Errorf("%s of %s, refused without %s, left %v", c.what, mode, missing, q)
				}
			}
			everyKeyEnds(t, k, fmt.Sprintf("%s of %s without %s", c.what, mode, missing))
			cancel()
			await.From(t, over)
		}
	}
	return refused
}

// TestRedisKeysGetTheirTimeBack: keys that have lost their expiry get one again that is long enough
// for all that stands there: from a call that inspects the name or renews a request, and from any
// other call once a quarter of keep_tokens has passed.
func TestRedisKeysGetTheirTimeBack(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	const keep = 10 * time.Minute
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{KeepTokens: keep})
	brief := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redis.Options{KeepTokens: 2 * time.Second})
	for _, lose := range []struct {
		what string
		do   func(key string)
	}{
		{"PERSIST", func(key string) { k.Must("PERSIST", key) }},
		{"RESTORE", func(key string) {
			dump := k.Dump(k.Ctx, key).Val()
			k.Must("RESTORE", key, 0, dump, "REPLACE")
		}},
	} {
		for _, c := range []struct {
			what  string
			left  time.Duration // at least, of what else stands there
			touch func(name string, held driver.Request)
		}{
			{"a renewal", time.Minute, func(_ string, held driver.Request) {
				if err := steps.Renewed(b, held); err != nil {
					t.Error(err)
				}
			}},
			{"Inspect", time.Minute, func(name string, _ driver.Request) { steps.Queue(t, b, name) }},
			{"List", time.Minute, func(string, driver.Request) {
				if _, err := b.(driver.Lister).List(t.Context()); err != nil {
					t.Error(err)
				}
			}},
		} {
			for _, more := range []bool{false, true} { // beside a long hold
				name := fmt.Sprint(lose.what, "/", c.what, "/", more)
				held, long := steps.Asked(b, name, time.Minute), steps.Asked(b, name, time.Hour)
				want := c.left
				if more {
					held.Mode, long.Mode, want = driver.Shared, driver.Shared, time.Hour
					steps.Acquired(t, b, long)
				}
				steps.Acquired(t, b, held)
				lose.do(redisKey(name))
				if more {
					lose.do(queueKey(name))
				}
				c.touch(name, held)
				keys := []string{redisKey(name)}
				if more {
					keys = append(keys, queueKey(name))
				}
				for _, key := range keys {
					if d := k.PTTL(k.Ctx, key).Val(); d < want+keep-10*time.Second || d > want+keep+keep/4+time.Minute {
						t.Errorf("%s, then %s, beside another %t: %s stands for %s; want about %s", lose.what, c.what, more, key, d, want+keep)
					}
				}
			}
		}
		// only the last token is left, and a quarter of keep_tokens passes
		name := lose.what + "/used"
		held := steps.Asked(brief, name, time.Second)
		steps.Acquired(t, brief, held)
		steps.Released(t, brief, held)
		lose.do(redisKey(name))
		await.That(t, "a quarter is over", func() bool {
			again := steps.Asked(brief, name, time.Second)
			steps.Acquired(t, brief, again)
			steps.Released(t, brief, again)
			return k.PTTL(k.Ctx, redisKey(name)).Val() > 0
		})
		everyKeyEnds(t, k, lose.what+", then one that is granted")
	}
}
