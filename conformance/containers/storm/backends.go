package main

import (
	"context"
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
}

// backends are the backends that there are storms for.
var backends = []backend{
	{name: "memory", ttl: time.Second, inside: true, faults: []fault{stopped, frozen, killed, isolated, repliesHeld, replyDropped},
		start: func(service.T, string) (string, []*service.Server) { return "memory:storm", nil }},
	{name: "file", ttl: time.Second, faults: []fault{stopped, killed},
		start: func(_ service.T, dir string) (string, []*service.Server) {
			return "file://" + filepath.Join(dir, "locks"), nil
		}},
	{name: "redis", ttl: time.Second, faults: remote(), start: alone(redis.Redis.With(redis.Durable...))},
	{name: "mysql", ttl: time.Second, faults: remote(database...), start: migrated(mysql.MySQL)},
	{name: "mariadb", ttl: time.Second, faults: remote(database...), start: migrated(mysql.MariaDB)},
	{name: "postgres", ttl: time.Second, faults: remote(database...), start: migrated(postgres.PostgreSQL)},
	{name: "zookeeper", ttl: time.Second, faults: remote(sessionEnded), start: alone(zookeeper.ZooKeeper)},
	{name: "ensemble", ttl: 2 * time.Second, faults: remote(sessionEnded),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			e := zookeeper.StartEnsemble(t)
			return e.URL(), e.Nodes
		}},
	{name: "redlock", ttl: 2 * time.Second, faults: remote(),
		start: func(t service.T, _ string) (string, []*service.Server) {
			t.Helper()
			var masters []*service.Server
			for range 3 {
				masters = append(masters, service.StartOwn(t, redis.Redis.With(redis.Durable...)))
			}
			return "redlock://" + strings.Join(service.Addrs(masters), ","), masters
		}},
	{name: "etcd", ttl: 2 * time.Second, faults: remote(), start: alone(etcd.Etcd)},
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
		s := service.StartOwn(t, k)
		return s.URL, []*service.Server{s}
	}
}

// migrated is alone for a kind of database, in which it makes the tables.
func migrated(k service.Kind) func(service.T, string) (string, []*service.Server) {
	return func(t service.T, dir string) (string, []*service.Server) {
		t.Helper()
		url, servers := alone(k)(t, dir)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		with := "?migrate=true"
		if strings.Contains(url, "?") {
			with = "&migrate=true"
		}
		b, err := dlock.OpenBackend(ctx, url+with, dlock.Logger(nil))
		if err != nil {
			t.Fatalf("make the tables: %v", err)
		}
		b.Close()
		return url, servers
	}
}
