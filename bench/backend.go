package main

import (
	"context"
	"os"
	"slices"

	"github.com/dlock-go/dlock/conformance/containers/etcd"
	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/postgres"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
)

// backend is a kind of server, and the contenders that are measured there.
type backend struct {
	name       string
	local      bool // there is no server
	start      func(service.T) (addr string, server *service.Server)
	contenders []contender
}

// backends are all backends. Their servers are those of the conformance tests, but as durable as
// servers are by default: an acknowledged change has reached the disk. Redis keeps its data in
// memory only.
var backends = []backend{
	{"redis", false, serverOf(redis.Redis), []contender{
		ofDlock(func(addr string) string { return "redis://" + addr + "/0?" }), ofRedsync, ofRedislock, ofRueidislock, ofEvalsha, ofSet,
	}},
	{"mysql", false, serverOf(mysql.MySQL.With("--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")), []contender{
		ofDlock(mysqlURL), ofForUpdate, ofGetLock,
	}},
	{"mariadb", false, serverOf(mysql.MariaDB.With("--innodb-flush-log-at-trx-commit=1")), []contender{
		ofDlock(mysqlURL), ofForUpdate, ofGetLock,
	}},
	{"postgres", false, serverOf(postgres.PostgreSQL.With("-c", "fsync=on", "-c", "max_connections=700")), []contender{
		ofDlock(func(addr string) string { return postgresURL(addr) + "migrate=true&" }), ofSkipLocked, ofAdvisory,
	}},
	{"zookeeper", false, serverOf(zookeeper.ZooKeeper.With("-Dzookeeper.forceSync=yes", "-XX:TieredStopAtLevel=4")), []contender{
		ofDlock(func(addr string) string { return "zookeeper://" + addr + "?" }), ofZkLock, ofZkLockConn, ofCurator,
	}},
	{"etcd", false, serverOf(etcd.Etcd.With("--unsafe-no-fsync=false", "--heartbeat-interval=100", "--election-timeout=1000")), []contender{
		ofDlock(func(addr string) string { return "etcd://" + addr + "?" }), ofConcurrency,
	}},
	{"file", true, folder, []contender{
		ofDlock(func(dir string) string { return "file://" + dir + "?" }), ofFlock,
	}},
}

func mysqlURL(addr string) string { return "mysql://root@" + addr + "/test?migrate=true&" }

func postgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable&"
}

func serverOf(k service.Kind) func(service.T) (string, *service.Server) {
	k.OnDisk = true
	return func(t service.T) (string, *service.Server) {
		s := service.StartOwn(t, k)
		return s.Addr, s
	}
}

func folder(t service.T) (string, *service.Server) {
	dir, err := os.MkdirTemp("", "dlock-bench-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir, nil
}

// stand is a backend with a running server.
type stand struct {
	backend
	addr     string
	server   *service.Server // nil: there is none
	versions []string

	// watch measures which share of the machine others use, as the function watch: all processes
	// but this one and the servers'.
	watch func() (stop func() float64)
}

// on starts the backend's server, runs f and stops the server again. A contender that cannot be
// started stays in the list, and every open of it fails.
func (b backend) on(ctx context.Context, f func(context.Context, *stand)) error {
	var t service.Stage
	defer t.End()
	s := &stand{backend: b}
	ours := []int{os.Getpid()}
	started := func(server *service.Server) {
		ours = append(ours, server.PID(&t))
		s.versions = append(s.versions, server.Version)
	}
	err := t.Try(func() {
		s.addr, s.server = b.start(&t)
		if s.server != nil {
			started(s.server)
		}
	})
	if err != nil {
		return err
	}
	s.contenders = slices.Clone(b.contenders)
	for i := range s.contenders {
		c := &s.contenders[i]
		if c.beside == nil {
			continue
		}
		var own service.Stage // a failure here is this contender's alone
		t.Cleanup(own.End)
		err := own.Try(func() {
			server, open := c.beside(&own)
			c.open = open
			started(server)
		})
		if err != nil {
			c.open = func(context.Context, string) (client, error) { return nil, err }
		}
	}
	s.watch = func() func() float64 { return watch(ours) }
	f(ctx, s)
	return nil
}

// closer is anything that has to be closed.
type closer interface{ close() }

// closers closes all of its elements, the last first.
type closers []closer

func (c closers) close() {
	for i := len(c) - 1; i >= 0; i-- {
		c[i].close()
	}
}
