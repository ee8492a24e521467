package moving

import (
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/etcd"
	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/postgres"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
	"github.com/dlock-go/dlock/conformance/internal/fleet"
	"github.com/dlock-go/dlock/driver"
	_ "github.com/dlock-go/dlock/driver/etcd"
	_ "github.com/dlock-go/dlock/driver/file"
	_ "github.com/dlock-go/dlock/driver/memory"
	mysqldriver "github.com/dlock-go/dlock/driver/mysql"
	postgresdriver "github.com/dlock-go/dlock/driver/postgres"
	_ "github.com/dlock-go/dlock/driver/redis"
	_ "github.com/dlock-go/dlock/driver/zookeeper"
)

// kinds are the kinds of backends.
var kinds = []string{"memory", "file", "redis", "mysql", "postgres", "zookeeper", "etcd"}

// place is a backend.
type place struct {
	url    string
	server *service.Server // nil: it has none
}

// places starts a backend of each kind. Those of servers also have the formats of other software.
func places(t *testing.T) map[string]place {
	t.Helper()
	all := map[string]place{
		"memory": {url: "memory:" + t.Name()},
		"file":   {url: "file://" + t.TempDir()},
	}
	for name, k := range map[string]service.Kind{"redis": redis.Redis, "mysql": mysql.MySQL, "postgres": postgres.PostgreSQL, "zookeeper": zookeeper.ZooKeeper, "etcd": etcd.Etcd} {
		s := service.Start(t, k)
		all[name] = place{s.URL, s}
	}
	migrate(t, all["mysql"].url)
	migratePostgres(t, all["postgres"].url)
	for format, parameters := range map[string]string{
		"redis, setnx":       "?format=setnx&key=lock:{name}",
		"redis, redisson":    "?format=redisson&key=rlock:{name}",
		"zookeeper, curator": "?format=curator&path=/locks/{name}",
		"etcd, plain":        "?keys=plain&key=/locks/{name}",
		"mysql, get_lock":    "?format=get_lock",
		"postgres, advisory": "?format=advisory",
	} {
		kind, _, _ := strings.Cut(format, ",")
		url := all[kind].url
		if strings.Contains(url, "?") {
			parameters = "&" + parameters[1:]
		}
		all[format] = place{url + parameters, all[kind].server}
	}
	return all
}

// migrate makes the tables of MySQL, and those of other software.
func migrate(t *testing.T, url string, others ...string) {
	t.Helper()
	db, err := mysql.Pool(url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := mysqldriver.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, schema := range others {
		if _, err := db.ExecContext(t.Context(), schema); err != nil {
			t.Fatal(err)
		}
	}
}

// migratePostgres makes the tables of PostgreSQL.
func migratePostgres(t *testing.T, url string) {
	t.Helper()
	db, err := postgresdriver.OpenDB(url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := postgresdriver.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
}

// site is the place as a site of a fleet.
func (p place) site(name string) fleet.Site {
	return fleet.Site{Name: name, Open: func(t conformance.T) driver.Backend { return open(t, p.url) }}
}

// raises reports whether the backend can raise tokens.
func (p place) raises(t *testing.T) bool {
	t.Helper()
	b := open(t, p.url)
	defer b.Close()
	return b.(driver.Capable).Capabilities().Raises
}

// open opens the backend of a URL, or of two.
func open(t conformance.T, url string, opts ...dlock.Option) driver.Backend {
	t.Helper()
	b, err := dlock.OpenBackend(t.Context(), url, append(opts, dlock.Logger(nil))...)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return b
}

// servers are those of places.
func servers(ps ...place) (all []*service.Server) {
	for _, p := range ps {
		if p.server != nil {
			all = append(all, p.server)
		}
	}
	return all
}
