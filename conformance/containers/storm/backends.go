package main

import (
	"context"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/etcd"
	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/postgres"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
	_ "github.com/dlock-go/dlock/driver/etcd" // and the other schemes of the table
	_ "github.com/dlock-go/dlock/driver/file"
	_ "github.com/dlock-go/dlock/driver/memory"
	_ "github.com/dlock-go/dlock/driver/mysql"
	_ "github.com/dlock-go/dlock/driver/postgres"
	_ "github.com/dlock-go/dlock/driver/redis"
	_ "github.com/dlock-go/dlock/driver/redis/redlock"
	_ "github.com/dlock-go/dlock/driver/zookeeper"
)

// backend is what a storm runs on: a row of the table.
type backend struct {
	name   string
	ttl    time.Duration
	faults []fault
	// start starts its servers, if there are any, and returns the URL for clients. A folder may be
	// used for its data.
	start  func(t service.T, dir string) (url string, servers []*service.Server)
	inside bool // it lives within one process, which has all clients
	walled bool // holds expire by the wall clock of a server
	named  bool // clients learn from servers where the others are, and which of them serves
}

// backends are the backends that there are storms for.
var backends = []backend{
	{name: "memory", ttl: time.Second, inside: true, faults: []fault{stopped, frozen, killed, isolated, repliesHeld, replyDropped},
		start: func(service.T, string) (string, []*service.Server) { return "memory:storm", nil }},
	{name: "file", ttl: time.Second, faults: []fault{stopped, killed},
		start: func(_ service.T, dir string) (string, []*service.Server) {
			return "file://" + filepath.Join(dir, "locks"), nil
		}},
	{name: "redis", ttl: time.Second, walled: true, faults: remote(slices.Concat(storage, []fault{clockStepped})...),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			s := redisServer(t, redisRights)
			return as(t, withPassword, s.URL), []*service.Server{s}
		}},
	{name: "rediss", ttl: time.Second, faults: remote(memoryFull, snapshotsFail, certificatesReplaced), start: secureRedis},
	{name: "mysql", ttl: time.Second, walled: true, faults: remote(slices.Concat(database, []fault{clockStepped})...), start: migrated(mysql.MySQL)},
	{name: "mariadb", ttl: time.Second, walled: true, faults: remote(slices.Concat(database, []fault{clockStepped})...), start: migrated(mysql.MariaDB)},
	{name: "postgres", ttl: time.Second, walled: true, faults: remote(slices.Concat(database, []fault{clockStepped})...), start: migrated(postgres.PostgreSQL)},
	{name: "pgbouncer", ttl: time.Second, faults: remote(database...),
		start: func(t service.T, dir string) (string, []*service.Server) {
			t.Helper()
			_, servers := migrated(postgres.PostgreSQL)(t, dir)
			pooler := service.StartOwn(t, postgres.Before(servers[0]))
			return as(t, url.User(user), pooler.URL), append(servers, pooler)
		}},
	{name: "zookeeper", ttl: time.Second, faults: remote(sessionEnded, rightsTaken, clockStepped), start: alone(zookeeper.ZooKeeper)},
	{name: "ensemble", ttl: 2 * time.Second, faults: remote(sessionEnded, leaderKilled, rightsTaken),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			e := zookeeper.StartEnsemble(t)
			return e.URL(), e.Nodes
		}},
	{name: "redlock", ttl: 2 * time.Second, walled: true, faults: remote(slices.Concat(storage, []fault{emptied, clockStepped})...),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			var masters []*service.Server
			for range 3 {
				masters = append(masters, redisServer(t, redlockRights))
			}
			return as(t, withPassword, "redlock://"+strings.Join(service.Addrs(masters), ",")), masters
		}},
	{name: "etcd", ttl: 2 * time.Second, faults: remote(noSpace, compacted, defragmented, rightsTaken, leasesRevoked),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			s := service.StartOwn(t, etcd.Etcd.With("--bcrypt-cost=4"))
			guardEtcd(t, s)
			return as(t, withPassword, s.URL), []*service.Server{s}
		}},
	{name: "etcd-cluster", ttl: 2 * time.Second, faults: remote(leaderKilled),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			c := etcd.StartCluster(t)
			return c.URL(), c.Members
		}},
	{name: "sentinel", ttl: 2 * time.Second, named: true, faults: remote(masterKilled, masterPaused, failoverAsked),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			s := redis.StartSentinel(t, redis.Redis.With(redis.Durable...))
			return "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + s.Name, s.Nodes
		}},
	{name: "cluster", ttl: 2 * time.Second, named: true, faults: remote(masterKilled, masterPaused, failoverAsked, slotMoved),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			c := redis.StartCluster(t, redis.Redis.With(redis.Durable...))
			return "redis+cluster://" + strings.Join(c.Addrs(), ","), c.Nodes
		}},
}

// remote are the faults that every backend with a server has, and more.
func remote(more ...fault) []fault {
	return slices.Concat(network, []fault{stopped, killed, serverPaused, serverRestarted}, more)
}

// silent is the log of Redis's client library, which has a line for each refused connection.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { goredis.SetLogger(silent{}) } // also in the processes of clients

// alone starts one server of a kind.
func alone(k service.Kind) func(service.T, string) (string, []*service.Server) {
	return func(t service.T, _ string) (string, []*service.Server) {
		t.Helper()
		s := service.StartOwn(t, k.WithClock(t))
		return s.URL, []*service.Server{s}
	}
}

// migrated is alone for a kind of database, in which it makes the tables and the clients' user.
func migrated(k service.Kind) func(service.T, string) (string, []*service.Server) {
	return func(t service.T, dir string) (string, []*service.Server) {
		t.Helper()
		text, servers := alone(k)(t, dir)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		with := "?migrate=true"
		if strings.Contains(text, "?") {
			with = "&migrate=true"
		}
		b, err := dlock.OpenBackend(ctx, text+with, dlock.Logger(nil))
		if err != nil {
			t.Fatalf("make the tables: %v", err)
		}
		b.Close()
		d := dialectOf(servers[0])
		db, err := d.open(text)
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer db.Close()
		if err := execute(ctx, db, slices.Insert(changeRights("GRANT", "TO", tableRights), 0, d.newUser)...); err != nil {
			t.Fatalf("make the user: %v", err)
		}
		return as(t, url.User(user), text), servers
	}
}
