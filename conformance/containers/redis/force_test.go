package redis

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver/redis"
)

// TestRedisBrokenHoldEndsWithItsRelease: a hold that was broken without force ends when its holder
// releases it, before its time. The waiter is then granted.
func TestRedisBrokenHoldEndsWithItsRelease(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	holder, other := openRedis(t, s, "ttl=1m"), openRedis(t, s, "ttl=1m")
	for _, joined := range []bool{false, true} {
		name := fmt.Sprint("broken/", joined)
		l := redisLock(t, holder.Mutex(name))
		held := []*dlock.Lease{l}
		if joined { // another client holds it too
			j, err := other.Mutex(name).Lock(dlock.WithOwner(t.Context(), l.Owner()))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, j)
		}
		w := steps.Try(t, other.Mutex(name))
		redisWaiting(t, holder, name, 1)
		if err := other.Break(t.Context(), name, l.Token()); err != nil {
			t.Fatal(err)
		}
		for _, h := range held {
			if !w.Pending() {
				t.Fatal("the waiter was granted before the release of the broken hold")
			}
			if err := h.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
				t.Errorf("Unlock of a broken hold: %v", err)
			}
		}
		redisUnlock(t, w.Got("the successor", time.Now(), 3*time.Second))
	}
}

// TestRedisForceReachesTheHolder: a holder whose hold another process ends by force learns of it
// within a second, and the waiter is granted, although the holder is not waiting, and renews
// only after ten seconds.
func TestRedisForceReachesTheHolder(t *testing.T) {
	t.Parallel()
	bin := steps.BuildCommand(t)
	byURL := func(t *testing.T, url string) *dlock.Client {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	byNew := func(t *testing.T, rdb goredis.UniversalClient) *dlock.Client {
		b, err := redis.New(rdb, redis.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := steps.ClientOf(t, b)
		t.Cleanup(func() { c.Close(); rdb.Close() })
		return c
	}
	run := func(t *testing.T, url string, client func(*testing.T) *dlock.Client, nodes []*service.Server) {
		for _, when := range []string{"at once", "when its client listens", "when the connection for that is lost"} {
			t.Run(when, func(t *testing.T) {
				holder := client(t)
				name := "force/" + when
				other := byURL(t, url)
				l := redisLock(t, holder.Mutex(name))
				w := steps.Try(t, other.Mutex(name))
				if when != "at once" {
					await.That(t, "the clients listen", func() bool { // holder and waiter
						n := 0
						for _, s := range nodes {
							k := CLIOf(t, s)
							n += len(k.PubSubChannels(k.Ctx, "dlock:*").Val())
						}
						return n == 2
					})
				}
				q, err := other.Inspect(t.Context(), name)
				if err != nil || len(q.Holders) != 1 {
					t.Fatal(q, err)
				}
				if when == "when the connection for that is lost" {
					for _, s := range nodes {
						CLIOf(t, s).Must("CLIENT", "KILL", "TYPE", "pubsub")
					}
				}
				cmd := exec.CommandContext(t.Context(), bin, "break", "--yes", "--force", name)
				cmd.Env = append(os.Environ(), "DLOCK_URL="+url)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				broken := time.Now()
				select {
				case <-l.Lost():
				case <-time.After(soon):
				}
				// a machine may stand still for a moment; the next renewal is much later
				if took := time.Since(broken); took > 3*time.Second {
					t.Errorf("the holder learned of the break after %s", took)
				}
				redisUnlock(t, w.Got("the waiter", broken, 3*time.Second))
				holder.Close()
				other.Close()
				await.That(t, "no client listens any more", func() bool {
					for _, s := range nodes {
						k := CLIOf(t, s)
						if len(k.PubSubChannels(k.Ctx, "dlock:*").Val()) > 0 {
							return false
						}
					}
					return true
				})
			})
		}
	}
	t.Run("one server", func(t *testing.T) {
		s := service.StartOwn(t, Redis)
		url := s.URL + "/0"
		t.Run("URL", func(t *testing.T) {
			run(t, url, func(t *testing.T) *dlock.Client { return byURL(t, url) }, []*service.Server{s})
		})
		t.Run("New", func(t *testing.T) {
			run(t, url, func(t *testing.T) *dlock.Client {
				return byNew(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Protocol: 2}))
			}, []*service.Server{s})
		})
	})
	t.Run("Sentinel", func(t *testing.T) {
		s := StartSentinel(t, Valkey)
		url := fmt.Sprintf("redis+sentinel://%s/%s/0", join(s.Addrs()), s.Name)
		run(t, url, func(t *testing.T) *dlock.Client { return byURL(t, url) }, s.Nodes[:1])
	})
	t.Run("Cluster", func(t *testing.T) {
		s := StartCluster(t, Redis)
		url := "redis+cluster://" + join(s.Addrs())
		run(t, url, func(t *testing.T) *dlock.Client {
			return byNew(t, goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs()}))
		}, s.Nodes)
	})
}
