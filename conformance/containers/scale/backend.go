package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/etcd"
	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/postgres"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
	"github.com/dlock-go/dlock/conformance/netfault"
	_ "github.com/dlock-go/dlock/driver/etcd" // and the other schemes of the table
	_ "github.com/dlock-go/dlock/driver/file"
	_ "github.com/dlock-go/dlock/driver/memory"
	_ "github.com/dlock-go/dlock/driver/mysql"
	_ "github.com/dlock-go/dlock/driver/postgres"
	_ "github.com/dlock-go/dlock/driver/redis"
	_ "github.com/dlock-go/dlock/driver/redis/redlock"
	_ "github.com/dlock-go/dlock/driver/zookeeper"
)

// backend is a row of the table of what is measured.
type backend struct {
	name    string
	kind    *service.Kind // of its servers; nil: there are none
	servers int
	url     string // %s: the addresses of the servers, or a folder
	setUp   string // parameters of the first open
	alone   bool   // it lives within one process
	bounds  map[string]promise
	stored  func(ctx context.Context, addr, prefix string) (stored, error)
}

// backends are all backends. A server admits as many connections as 1,000 clients need.
var backends = []backend{
	{name: "memory", url: "memory:scale?", alone: true, bounds: ofMemory},
	{name: "file", url: "file://%s?", bounds: ofFile, stored: inFolder},
	{name: "redis", kind: &redis.Redis, servers: 1, url: "redis://%s?", bounds: ofRedis, stored: inRedis},
	{name: "redlock", kind: &redis.Redis, servers: 3, url: "redlock://%s?", bounds: ofRedlock, stored: inRedis},
	{name: "mysql", kind: with(mysql.MySQL, "--max-connections=6000"), servers: 1, url: "mysql://root@%s/test?", setUp: "migrate=true&", bounds: ofMySQL, stored: inMySQL},
	{name: "mariadb", kind: with(mysql.MariaDB, "--max-connections=6000"), servers: 1, url: "mysql://root@%s/test?", setUp: "migrate=true&", bounds: ofMySQL, stored: inMySQL},
	{name: "postgres", kind: with(postgres.PostgreSQL, "-c", "max_connections=3000"), servers: 1, url: "postgres://postgres@%s/postgres?sslmode=disable&", setUp: "migrate=true&", bounds: ofPostgres, stored: inPostgres},
	{name: "zookeeper", kind: with(zookeeper.ZooKeeper, "-Xmx1g"), servers: 1, url: "zookeeper://%s?", bounds: ofZooKeeper, stored: inZooKeeper},
	{name: "etcd", kind: &etcd.Etcd, servers: 1, url: "etcd://%s?", bounds: ofEtcd, stored: inEtcd},
}

func with(k service.Kind, args ...string) *service.Kind {
	k = k.With(args...)
	return &k
}

// site is a backend that runs.
type site struct {
	backend
	size
	addrs    []string
	versions []string
}

// start starts the servers of a backend.
func (b backend) start(t service.T, z size) *site {
	t.Helper()
	s := &site{backend: b, size: z}
	for range b.servers {
		server := service.StartOwn(t, *b.kind)
		s.addrs = append(s.addrs, server.Addr)
		s.versions = append(s.versions, server.Version)
	}
	if b.name == "file" {
		dir, err := os.MkdirTemp("", "dlock-scale-")
		if err != nil {
			t.Fatalf("%v", err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		s.addrs = []string{filepath.Join(dir, "locks")}
	}
	if b.setUp != "" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, err := dlock.OpenBackend(ctx, s.address(s.addrs, "")+"&"+b.setUp, dlock.Logger(nil))
		if err != nil {
			t.Fatalf("make the tables: %v", err)
		}
		c.Close()
	}
	return s
}

// address is the URL of a client that reaches the servers at the addresses.
func (s *site) address(addrs []string, prefix string) string {
	u := s.url
	if len(addrs) > 0 {
		u = fmt.Sprintf(u, strings.Join(addrs, ","))
	}
	return u + "prefix=" + url.QueryEscape(prefix)
}

// open opens a client, through the proxy unless it is nil.
func (s *site) open(t service.T, p *netfault.Proxy, prefix string, ttl time.Duration) *dlock.Client {
	t.Helper()
	addrs := s.addrs
	if p != nil && s.kind != nil {
		addrs = nil
		for _, a := range s.addrs {
			through, err := p.Addr(a)
			if err != nil {
				t.Fatalf("%v", err)
			}
			addrs = append(addrs, through)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := dlock.Open(ctx, s.address(addrs, prefix), dlock.TTL(ttl), dlock.Logger(nil))
	if err != nil {
		t.Fatalf("open a client: %v", err)
	}
	return c
}

// at returns what the server stores for a prefix, or all that it stores where it cannot tell.
func (s *site) at(t service.T, prefix string) stored {
	t.Helper()
	if s.stored == nil {
		return stored{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	x, err := s.stored(ctx, s.addrs[0], prefix)
	if err != nil {
		t.Fatalf("count what is stored: %v", err)
	}
	return x
}
