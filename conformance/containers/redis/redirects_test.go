package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver/redis"
)

// TestRedisRedirectsWithReplicas: where replicas must have a grant, calls follow a slot that moves,
// also to a node that has none yet, and a planned failover of a master.
func TestRedisRedirectsWithReplicas(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, Redis)
	addEmpty(t, c, Redis)
	const ttl = 5 * time.Second
	byURL := func() *dlock.Client {
		client, err := dlock.Open(t.Context(), fmt.Sprintf("redis+cluster://%s?wait_replicas=1&ttl=%s", join(c.Addrs()[:6]), ttl), dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	byNew := func() *dlock.Client {
		rdb := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: c.Addrs()[:6]})
		b, err := redis.New(rdb, redis.Options{WaitReplicas: 1})
		if err != nil {
			t.Fatal(err)
		}
		client, err := dlock.New(b, dlock.TTL(ttl), dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(); rdb.Close() })
		return client
	}
	one, other := byURL(), byNew()

	// pair locks and unlocks a name, by TryLock, within the time that replicas may take.
	pair := func(what string, client *dlock.Client, name string) {
		t.Helper()
		l, err := client.Mutex(name).TryLock(t.Context())
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		redisUnlock(t, l)
	}
	for i, to := range []*service.Server{c.Nodes[6], nil} {
		name := fmt.Sprint("moves/", i)
		for _, client := range []*dlock.Client{one, other} {
			pair("before the move", client, name)
		}
		s := migrationOf(t, c, redisKey(name))
		if to != nil {
			s = migrationTo(t, c, redisKey(name), to)
		}
		held := redisLock(t, one.Mutex(name))
		waits := steps.Try(t, other.Mutex(name))
		redisWaiting(t, one, name, 1)
		s.begin()
		s.move(redisKey(name), queueKey(name))
		redisUnlock(t, held)
		redisUnlock(t, waits.Got("the waiter while the slot moves", time.Now(), soon))
		for _, client := range []*dlock.Client{one, other} {
			pair("asked for at the other node", client, name)
		}
		for _, k := range []*CLI{s.dst, s.src} {
			k.Must("CLUSTER", "SETSLOT", s.number, "NODE", s.ids[1])
		}
		for _, client := range []*dlock.Client{one, other} {
			pair("after the move", client, name)
		}
	}

	// a planned failover
	const name = "failover"
	pair("before the failover", one, name)
	pair("before the failover", other, name)
	old := c.AwaitMaster(t, redisKey(name), nil)
	var replica *service.Server
	for i, n := range c.Nodes[:3] {
		if n == old {
			replica = c.Nodes[3+i]
		}
	}
	if replica == nil {
		t.Fatal("a master was replaced before")
	}
	CLIOf(t, replica).Must("CLUSTER", "FAILOVER")
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	for _, client := range []*dlock.Client{one, other} {
		l, err := client.Mutex(name).Lock(ctx)
		if err != nil {
			t.Fatalf("Lock at a failover: %v", err)
		}
		redisUnlock(t, l)
		pair("TryLock after it", client, name)
	}
}

// addEmpty adds a master without slots, and a replica of it.
func addEmpty(t *testing.T, c *Cluster, k service.Kind) {
	t.Helper()
	first := CLIOf(t, c.Nodes[0])
	var ids []string
	for range 2 {
		s := service.StartOwn(t, clusterKind(k))
		c.Nodes = append(c.Nodes, s)
		n := CLIOf(t, s)
		id, err := n.Do(n.Ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		first.Must("CLUSTER", "MEET", "127.0.0.1", s.Ports[0], s.Ports[1])
		if len(ids) == 2 {
			await.That(t, "the replica knows its master", func() bool { return n.Do(n.Ctx, "CLUSTER", "REPLICATE", ids[0]).Err() == nil })
		}
	}
	await.That(t, "the replica has the data", func() bool {
		n := CLIOf(t, c.Nodes[7])
		info, err := n.Info(n.Ctx, "replication").Result()
		return err == nil && InfoField(info, "master_link_status") == "up"
	})
	await.That(t, "all know the new master", func() bool {
		for _, n := range c.Nodes {
			k := CLIOf(t, n)
			members, err1 := clusterNodes(t.Context(), k.Client)
			info, err2 := k.ClusterInfo(k.Ctx).Result()
			if err1 != nil || err2 != nil || len(members) != len(c.Nodes) || InfoField(info, "cluster_state") != "ok" {
				return false
			}
		}
		return true
	})
}
