package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// refusal is a condition under which a server refuses calls for a time.
type refusal struct {
	prefix     string // of its errors
	says       string // what TryLock says then; empty: perhaps only that the connection is closed
	begin, end func(*CLI)
}

func config(name string, v any) func(*CLI) {
	return func(k *CLI) { k.Must("CONFIG", "SET", name, v) }
}

// TestRedisRefusesForATime: a waiter, and a request that arrives then, survive each temporary
// refusal of a server and are granted when it is over. TryLock reports it, and not as a lock that
// is held.
func TestRedisRefusesForATime(t *testing.T) {
	for _, kind := range []service.Kind{Redis, Valkey} {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel() // it waits
			// nothing can be saved in that folder
			s := service.StartOwn(t, kind.With("--dir", "/proc", "--busy-reply-threshold", "100"))
			refuses(t, s, s.URL+"/0", []refusal{
				{"MISCONF", "takes no writes", func(k *CLI) {
					k.Must("CONFIG", "SET", "save", "3600 1")
					k.Must("BGSAVE")
					await.That(t, "the snapshot has failed", func() bool {
						info, err := k.Info(k.Ctx, "persistence").Result()
						return err == nil && InfoField(info, "rdb_last_bgsave_status") == "err"
					})
				}, config("stop-writes-on-bgsave-error", "no")},
				{"OOM", "memory is full", config("maxmemory", 1), config("maxmemory", 0)},
				{"NOREPLICAS", "min-replicas-to-write", config("min-replicas-to-write", 1), config("min-replicas-to-write", 0)},
				{"READONLY", "a replica", func(k *CLI) { k.Must("REPLICAOF", "127.0.0.1", 1) }, func(k *CLI) { k.Must("REPLICAOF", "NO", "ONE") }},
				{"BUSY", "BUSY", func(k *CLI) {
					go k.Do(k.Ctx, "EVAL", "while true do end", 0)
					await.That(t, "the server is busy", func() bool {
						err := k.Set(k.Ctx, "x", 1, 0).Err()
						return err != nil && strings.HasPrefix(err.Error(), "BUSY")
					})
				}, func(k *CLI) { k.Must("SCRIPT", "KILL") }},
				{"ERR max number of clients", "", func(k *CLI) {
					k.Must("CONFIG", "SET", "maxclients", 1)
					k.Must("CLIENT", "KILL", "SKIPME", "yes")
				}, config("maxclients", 10000)},
			})
		})
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		s := service.StartOwn(t, clusterKind(Redis))
		k := CLIOf(t, s)
		k.Must("CLUSTER", "ADDSLOTSRANGE", 0, slots-1)
		state := func(want string) func() bool {
			return func() bool {
				info, err := k.ClusterInfo(k.Ctx).Result()
				return err == nil && InfoField(info, "cluster_state") == want
			}
		}
		await.That(t, "the cluster serves", state("ok"))
		refuses(t, s, "redis+cluster://"+s.Addr, []refusal{{"CLUSTERDOWN", "CLUSTERDOWN", func(k *CLI) {
			k.Must("CLUSTER", "DELSLOTS", 0)
			await.That(t, "the cluster is down", state("fail"))
		}, func(k *CLI) {
			k.Must("CLUSTER", "ADDSLOTS", 0)
			await.That(t, "the cluster serves", state("ok"))
		}}})
	})
}

func refuses(t *testing.T, s *service.Server, url string, refusals []refusal) {
	k := CLIOf(t, s)
	open := func() *dlock.Client {
		c, err := dlock.Open(t.Context(), url+"?ttl=1m", dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	holder, other := open(), open()
	for _, r := range refusals {
		name := "refused/" + r.prefix
		held := redisLock(t, holder.Mutex(name))
		waits := steps.Try(t, other.Mutex(name))
		redisWaiting(t, holder, name, 1)
		r.begin(k)
		comes := steps.Try(t, other.Mutex(name+"/new"))
		_, err := other.Mutex(name + "/try").TryLock(t.Context())
		var said goredis.Error
		if err == nil || errors.Is(err, dlock.ErrHeld) ||
			r.says != "" && (!errors.As(err, &said) || !strings.HasPrefix(said.Error(), r.prefix) || !strings.Contains(err.Error(), r.says)) {
			t.Errorf("%s: TryLock: %v; want the server's error, and %q", r.prefix, err, r.says)
		}
		comes.Returns(2 * time.Second) // a waiter asks every second
		if !waits.Pending() || !comes.Pending() {
			t.Errorf("%s ended waits: %v, %v", r.prefix, waits.Err, comes.Err)
		}
		r.end(k)
		redisUnlock(t, comes.Got(fmt.Sprint("the arrival during ", r.prefix), time.Now(), soon))
		redisUnlock(t, held)
		redisUnlock(t, waits.Got(fmt.Sprint("the waiter during ", r.prefix), time.Now(), soon))
	}
}
