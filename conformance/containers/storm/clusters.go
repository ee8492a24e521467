package main

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/etcd"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// The faults of servers that replace each other.
var (
	leaderKilled = fault{name: "leader killed", what: "the leader is killed, and starts later on its data", server: true, least: 0.5, most: 3, run: func(s *storm, _ *member, d time.Duration) {
		leader := s.leader()
		leader.Kill(s.t)
		s.sleep(d)
		leader.Restart(s.t)
	}}
	masterKilled = fault{name: "master killed", what: "a master is killed until a replica was promoted, and for so much longer; it comes back as a replica", server: true, least: 0, most: 1, run: func(s *storm, _ *member, d time.Duration) {
		s.replaceMaster(d, (*service.Server).Kill, (*service.Server).Restart)
	}}
	masterPaused = fault{name: "master paused", what: "the same with one that is stopped (SIGSTOP) and goes on", server: true, least: 0, most: 1, run: func(s *storm, _ *member, d time.Duration) {
		s.replaceMaster(d, (*service.Server).Pause, (*service.Server).Continue)
	}}
	failoverAsked = fault{name: "failover asked for", what: "an operator replaces a master (CLUSTER FAILOVER, SENTINEL FAILOVER)", server: true, run: func(s *storm, _ *member, _ time.Duration) {
		s.askForFailover()
	}}
	slotMoved = fault{name: "slot moved", what: "the slot of a name is moved to another master. It stands between both for so long before its keys move, and after each of them", server: true, least: 1.2, most: 2, run: func(s *storm, _ *member, d time.Duration) {
		s.moveSlot("dlock:{"+names[s.changes%len(names)]+"}", d)
	}}
)

// clustered are the faults of servers that replace each other.
var clustered = []fault{leaderKilled, masterKilled, masterPaused, failoverAsked, slotMoved}

// changes reports whether another server of Redis serves afterwards what one served before.
func (f fault) changes() bool {
	return slices.ContainsFunc(clustered[1:], func(g fault) bool { return g.name == f.name })
}

// leader returns the server that leads now.
func (s *storm) leader() *service.Server {
	if strings.HasPrefix(s.URL, "etcd:") {
		return s.servers[(&etcd.Cluster{Members: s.servers}).Leader(s.t)]
	}
	return (&zookeeper.Ensemble{Nodes: s.servers}).AwaitLeader(s.t)
}

// awaitMaster waits until there is a master that has a replica with its data, and returns both.
func (s *storm) awaitMaster() (master, replica *node) {
	await.That(s.t, "a master has a replica", func() bool {
		master, replica = s.roles.master(s.changes, nil)
		return master != nil
	})
	return master, replica
}

// awaitChange waits until a node was replaced as a master; then it does more, and waits until the
// node is a replica that has the data of its master.
func (s *storm) awaitChange(n *node, more func()) {
	await.That(s.t, "another server is promoted", func() bool { return s.roles.replaced(n) || s.roles.follows(n) })
	more()
	await.That(s.t, "the old master is a replica", func() bool { return s.roles.follows(n) })
}

// replaceMaster takes a master away until another one was promoted, and for d.
func (s *storm) replaceMaster(d time.Duration, away, back func(*service.Server, service.T)) {
	n, _ := s.awaitMaster()
	away(n.Server, s.t)
	s.awaitChange(n, func() {
		s.sleep(d)
		back(n.Server, s.t)
	})
}

// askForFailover has a master replaced by its replica. A request is refused while the servers are
// not ready for it, or may come to nothing.
func (s *storm) askForFailover() {
	n, replica := s.awaitMaster()
	u, err := url.Parse(s.URL)
	if err != nil {
		s.t.Fatalf("not a URL")
	}
	ask := func(ctx context.Context) { replica.rdb.ClusterFailover(ctx) }
	if u.Scheme == "redis+sentinel" {
		sentinel := goredis.NewSentinelClient(&goredis.Options{Addr: strings.Split(u.Host, ",")[0], DisableIdentity: true})
		defer sentinel.Close()
		ask = func(ctx context.Context) { sentinel.Failover(ctx, strings.Trim(u.Path, "/")) }
	}
	var asked time.Time
	await.That(s.t, "another server is promoted", func() bool {
		if time.Since(asked) > 2*time.Second {
			ask(context.Background())
			asked = time.Now()
		}
		return s.roles.replaced(n) || s.roles.follows(n)
	})
	s.awaitChange(n, func() {})
}

// moveSlot moves the slot of a key to another master. Other faults of servers may strike while the
// slot stands between both.
func (s *storm) moveSlot(key string, stands time.Duration) {
	c := &redis.Cluster{Nodes: s.servers}
	var to *node
	await.That(s.t, "another master has a replica", func() bool {
		to, _ = s.roles.master(s.changes, c.Master(s.t, key))
		return to != nil
	})
	var err error
	for end, stood := time.Now().Add(2*time.Minute), false; time.Now().Before(end); {
		from := s.roles.of(c.Master(s.t, key))
		to = s.roles.serving(to)
		switch {
		case from == to:
			return
		case from != nil:
			if err = moveKey(from, to, key, stood); err == nil {
				stood = true
				s.struck.Unlock()
				s.sleep(stands)
				s.struck.Lock()
			}
		}
		s.sleep(100 * time.Millisecond) // not all nodes know the present masters
	}
	s.t.Fatalf("the slot of %s cannot be moved: %v", key, err)
}

// moveKey puts the slot of a key between two masters. If that was done before, it moves a key, or
// ends the move if none is left.
func moveKey(from, to *node, key string, before bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	slot, err := from.rdb.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		return err
	}
	src, err1 := from.rdb.Do(ctx, "CLUSTER", "MYID").Text()
	dst, err2 := to.rdb.Do(ctx, "CLUSTER", "MYID").Text()
	keys, err3 := from.rdb.ClusterGetKeysInSlot(ctx, int(slot), 1).Result()
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if before && len(keys) == 0 {
		return errors.Join(to.rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", dst).Err(),
			from.rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", dst).Err())
	}
	err = errors.Join(to.rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", src).Err(),
		from.rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", dst).Err())
	if err != nil || !before {
		return err
	}
	return from.rdb.Do(ctx, "MIGRATE", "127.0.0.1", to.Ports[0], "", 0, 5000, "REPLACE", "KEYS", keys[0]).Err()
}
