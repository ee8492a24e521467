package mysql

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/internal/size"
)

// mysqlTTL is the shortest that a busy machine with the race detector keeps alive.
const mysqlTTL = time.Second

// poolSide is a client of the driver with a pool of the test's, and a proxy before the server.
type poolSide struct {
	*mysql.Backend
	db   *sql.DB
	line *netfault.Proxy
	once sync.Once
}

// Close closes the backend, its pool and its proxy.
func (s *poolSide) Close() error {
	err := s.Backend.Close()
	s.once.Do(func() {
		err = errors.Join(err, s.db.Close())
		s.line.Close()
	})
	return err
}

// side opens a client over connections as d says. The schema is there.
func (d dsn) side(t service.T, p *netfault.Proxy, o mysql.Options) *poolSide {
	t.Helper()
	db := d.through(p).open()
	b, err := mysql.New(db, o)
	if err != nil {
		db.Close()
		p.Close()
		t.Fatalf("%v", err)
	}
	s := &poolSide{Backend: b, db: db, line: p}
	t.Cleanup(func() { s.Close() })
	return s
}

// migrated is the server with the schema of dlock.
func migrated(t service.T, s *service.Server) *service.Server {
	t.Helper()
	db := mysqlOf(t, s).open()
	defer db.Close()
	if err := mysql.Migrate(context.Background(), db); err != nil {
		t.Fatalf("%v", err)
	}
	return s
}

// behind is the URL of the server as it is reached through the proxy, with parameters.
func behind(t service.T, s *service.Server, p *netfault.Proxy, params string) string {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatalf("not a URL")
	}
	if u.Host, err = p.Addr(u.Host); err != nil {
		t.Fatalf("%v", err)
	}
	u.RawQuery = params
	return u.String()
}

// byURL opens the driver on connections of its own.
func byURL(t service.T, text string) driver.Backend {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatalf("not a URL")
	}
	c := driver.Config{URL: u, Hosts: strings.Split(u.Host, ","), TTL: time.Minute, Client: driver.NewID()}
	b, err := driver.Lookup(u.Scheme)(context.Background(), c)
	for range 2 { // a busy machine may stand still for as long as a call waits
		if err != nil && strings.Contains(err.Error(), "did not answer") {
			b, err = driver.Lookup(u.Scheme)(context.Background(), c)
		}
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// known is a backend whose queues are known by the server, not by the proxy through which it is
// reached. Its Close closes the proxy too.
type known struct {
	*mysql.Backend
	identity string
	line     *netfault.Proxy
}

// Close closes the backend and its proxy.
func (k known) Close() error {
	defer k.line.Close()
	return k.Backend.Close()
}

// Capabilities are those of the backend, but for the identity.
func (k known) Capabilities() driver.Capabilities {
	c := k.Backend.Capabilities()
	c.Identity = k.identity
	return c
}

// mysqlHarness is [Harness] for the one server.
func mysqlHarness(name string, s *service.Server, open func(conformance.T, *netfault.Proxy) driver.Backend) conformance.Harness {
	var lines sync.Map // by backend
	h := service.Harness(name, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		b := open(t, p)
		lines.Store(b, p)
		return b
	}, s)
	h.TTL = mysqlTTL
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		return mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{Prefix: prefix})
	}
	h.Stored = func(t conformance.T, _ driver.Backend, name string) int {
		t.Helper()
		db := mysqlOf(t, s).open()
		defer db.Close()
		return one[int](t, db, "SELECT COUNT(*) FROM dlock_requests WHERE name = CAST(? AS BINARY)", name)
	}
	h.Record = nil
	if s.Own() { // a user with a password is greeted in other words each time
		h.Record = func(t conformance.T, b driver.Backend) func() {
			p, _ := lines.Load(b)
			r := p.(*netfault.Proxy).Record()
			return func() {
				t.Helper()
				if err := replay(s, r); err != nil {
					t.Errorf("replay: %v", err)
				}
			}
		}
	}
	return h
}

// TestMySQLConformance runs the suite with a user that has the rights of the documentation, and no
// others.
func TestMySQLConformance(t *testing.T) {
	for _, k := range mysqlKinds {
		t.Run(k.Name, func(t *testing.T) {
			s := migrated(t, service.Start(t, k))
			as := *s
			if s.Own() {
				as.URL = leastRights(t, s, mysqlOf(t, s).pool(t), "")
			}
			conformance.Run(t, mysqlHarness(k.Name, s, func(t conformance.T, p *netfault.Proxy) driver.Backend {
				return known{byURL(t, behind(t, &as, p, "")).(*mysql.Backend), s.Addr, p}
			}))
		})
	}
}

// TestMySQLPoolConformance runs the suite with a user's pool whose connections are as different
// from the driver's own as possible. The code of the driver is the same on both servers, so a short
// run uses one of them.
func TestMySQLPoolConformance(t *testing.T) {
	kinds := mysqlKinds
	if !size.Long() {
		kinds = kinds[:1]
	}
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			s := migrated(t, service.Start(t, k))
			conformance.Run(t, service.OtherConnections(mysqlHarness(k.Name+", a pool of the user's", s, func(t conformance.T, p *netfault.Proxy) driver.Backend {
				b := hostile(mysqlOf(t, s)).side(t, p, mysql.Options{Identity: s.Addr})
				b.db.SetMaxOpenConns(3)
				return b
			})))
		})
	}
}

// hostile is d with settings of connections that a driver may stumble over.
func hostile(d dsn) dsn {
	c := d.Clone()
	c.ClientFoundRows, c.ParseTime, c.MultiStatements, c.InterpolateParams, c.ColumnsWithAlias = true, true, true, true, true
	c.Loc = time.FixedZone("elsewhere", -5*3600)
	c.Params = map[string]string{
		"autocommit": "0", "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", "time_zone": "'+05:30'", "innodb_lock_wait_timeout": "50",
		"sql_safe_updates": "1", "sql_select_limit": "1", "max_join_size": "1", "group_concat_max_len": "4", "completion_type": "'CHAIN'",
	}
	return dsn{c}
}
