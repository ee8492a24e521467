package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/redis"
	"github.com/dlock-go/dlock/fence"
)

// TestRedisPromotionGrantsTwice shows what docs/guarantees.md says of a failover, and why
// Capabilities.FailoverSafe is false: a replica is promoted that lacks the last grant, so two
// holders trust their leases at one time. Which of them a fenced resource refuses depends on the
// clocks: the first if the new master's is not behind, since its token is the smaller one. If it is
// behind, then the second is refused, until its master's clock has caught up.
func TestRedisPromotionGrantsTwice(t *testing.T) {
	t.Parallel()
	for what, behind := range map[string]time.Duration{"clocks in step": 0, "the replica's clock is behind": time.Hour} {
		t.Run(what, func(t *testing.T) {
			master, replica := startReplicated(t)
			var dial atomic.Pointer[service.Server] // the master that clients reach
			dial.Store(master)
			open := func() *dlock.Client {
				dialer := func(ctx context.Context, network, _ string) (net.Conn, error) {
					var d net.Dialer
					return d.DialContext(ctx, network, dial.Load().Addr)
				}
				rdb := goredis.NewClient(&goredis.Options{Addr: "the service", Dialer: dialer})
				b := overRedis(t, rdb, netfault.NewProxy(), redis.Options{})
				c, err := dlock.New(b, dlock.TTL(time.Minute), dlock.Logger(nil))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c
			}
			first, second := open(), open()
			if first.Capabilities().FailoverSafe {
				t.Error("Capabilities say that no failover loses a grant")
			}
			const name = "promoted"
			redisUnlock(t, redisLock(t, first.Mutex(name)))
			old, next := CLIOf(t, master), CLIOf(t, replica)
			await.That(t, "the replica has the name", func() bool { return next.Exists(next.Ctx, redisKey(name)).Val() == 1 })
			next.Must("REPLICAOF", "NO", "ONE") // from now on it gets nothing; it is used later
			if behind > 0 {
				// What the master granted last was granted by a clock that runs ahead.
				old.Must("HSET", redisKey(name), "token", fmt.Sprint(clock(old).Add(behind).UnixMicro()))
			}
			var register fence.Local
			write := func(l *dlock.Lease) error {
				m, err := fence.Of(l)
				if err != nil {
					t.Fatal(err)
				}
				done, err := register.Admit(t.Context(), "account", m)
				if err == nil {
					done()
				}
				return err
			}
			stale := redisLock(t, first.Mutex(name))
			if err := write(stale); err != nil {
				t.Fatalf("the first holder's write: %v", err)
			}
			master.Kill(t)
			dial.Store(replica)

			fresh := redisLock(t, second.Mutex(name))
			if err := stale.Err(); err != nil {
				t.Fatalf("the first holder does not trust its lease any more: %v", err)
			}
			if now := clock(next).UnixMicro(); int64(fresh.Token()) > now {
				t.Errorf("the new token is %d, and the new master's clock says %d", fresh.Token(), now)
			}
			wins, loses := fresh, stale
			if behind > 0 {
				wins, loses = stale, fresh
			}
			if wins.Token() <= loses.Token() {
				t.Errorf("the tokens are %d and then %d", stale.Token(), fresh.Token())
			}
			if err := write(wins); err != nil {
				t.Errorf("a write with the greater token: %v", err)
			}
			if err := write(loses); !errors.Is(err, fence.ErrStale) {
				t.Errorf("a write with the smaller token: %v, want ErrStale", err)
			}
			if err := stale.Renew(t.Context()); !errors.Is(err, dlock.ErrLost) {
				t.Errorf("Renew of the hold that the new master does not know: %v, want ErrLost", err)
			}
			if err := fresh.Renew(t.Context()); err != nil {
				t.Errorf("Renew of the hold that it knows: %v", err)
			}
		})
	}
}

// startReplicated starts a master and a replica that has its data.
func startReplicated(t *testing.T) (master, replica *service.Server) {
	t.Helper()
	k := Redis.With("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	master = service.StartOwn(t, k)
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	replica = service.StartOwn(t, k.With("--replicaof", host, port))
	awaitReplica(t, replica)
	return master, replica
}
